"""Fine-tuning: from a task and a model to θ_M1, θ_M2, θ_O and θ_F on disk."""
