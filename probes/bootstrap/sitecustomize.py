"""Starts the probes in every Python process of a trace, then runs the sitecustomize it hides.

This folder is put on PYTHONPATH by ``rca-llm trace``. It must work in any interpreter, with
rca-llm installed there or not, and do nothing outside a trace.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _start_probes():
    # type: () -> None
    run = os.environ.get("RCA_LLM_RUN")
    if not run or sys.version_info < (3, 7) or "_rca_llm_probes" in sys.modules:
        return
    folder = os.path.dirname(_FOLDER)
    # Always loaded, unlike importlib.util, which costs milliseconds.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    spec = spec_from_file_location(
        "_rca_llm_probes",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        module.start(run)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise


def _run_hidden():
    # type: () -> None
    """Run the sitecustomize that Python would have found without this folder."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = os.path.realpath(_FOLDER)
    path = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _start_probes()
except Exception:  # whatever is wrong with us, the program starts
    pass
_run_hidden()
