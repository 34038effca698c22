"""Self-contained HTML reports of runs. Knows run folders and nothing of RL."""

from .index import build_comparison as build_comparison
from .index import build_index as build_index
from .page import default_folder as default_folder
from .run_page import build_report as build_report
