"""Self-contained HTML reports of runs. Knows run folders and nothing of RL."""

from .html import build_report as build_report
from .html import default_folder as default_folder
from .index import build_comparison as build_comparison
from .index import build_index as build_index
