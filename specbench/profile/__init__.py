"""Latency profiles: how long a forward of a model takes, by tokens fed and context. No torch:
reports read them too.
"""

from specbench.profile.analytic import analytic_profile, find_pair
from specbench.profile.file import (
    find_profile,
    open_profile,
    published_profiles,
    read_profile,
    require_folder,
    write_profile,
)
from specbench.profile.profile import Ceilings, Fit, Grid, ModelShape, Profile, RowGrid, device_name
