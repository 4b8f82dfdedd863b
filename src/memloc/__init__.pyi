"""The public names, and the modules that they come from: `__init__.py` reads them here."""

from memloc import types as types
from memloc.data.own import load_csv as load_csv
from memloc.data.perturb import add_noise as add_noise
from memloc.data.sources import load_task as load_task
from memloc.errors import MemlocError as MemlocError
from memloc.labels.find import find as find
from memloc.labels.repair import repair as repair
from memloc.methods import Method as Method
from memloc.methods.apply import analyse as analyse
from memloc.methods.apply import localise as localise
from memloc.methods.gradients import Gradients as Gradients
from memloc.methods.retraining import Retraining as Retraining
from memloc.methods.shares import Shares as Shares
from memloc.methods.swapping import Swapping as Swapping
from memloc.methods.timeline import Timeline as Timeline
from memloc.model.load import LoadOptions as LoadOptions
from memloc.model.stack import register_stack as register_stack
from memloc.progress import quiet as quiet
from memloc.reporting.page import report as report
from memloc.reporting.results import load_results as load_results
from memloc.run.adopt import adopt as adopt
from memloc.run.callback import RunCallback as RunCallback
from memloc.run.callback import adopt_trainer as adopt_trainer
from memloc.run.folder import Run as Run
from memloc.run.plant import plant as plant
from memloc.run.spec import RunSpec as RunSpec
from memloc.run.train import train as train

__all__: list[str]
__version__: str
