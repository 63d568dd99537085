"""What latency would be if some parts took another time, from replaying the dependency graph."""

from rca_llm.whatif.change import Change
from rca_llm.whatif.model import Model
from rca_llm.whatif.prediction import savings, whatif, window
from rca_llm.whatif.settings import DERIVED, factors

__all__ = ["DERIVED", "Change", "Model", "factors", "savings", "whatif", "window"]
