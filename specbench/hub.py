"""Whether the Hugging Face hub can be asked: tried once, since its client tries six times over, for half a minute."""

from __future__ import annotations

import functools
import socket
import sys
from urllib.parse import urlsplit
from urllib.request import getproxies

_WAIT_S = 5
_HTTPS = 443
_FETCH = "so only the local cache is read: fetch it where there is network (specbench fetch SETTINGS)"


@functools.cache
def refuse_network() -> str:
    """Why the hub is not asked, '' where it is. One that cannot be reached is switched off, as by HF_HUB_OFFLINE."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, {_FETCH}, or unset it"
    place = urlsplit(constants.ENDPOINT)
    if getproxies():  # a proxy finds the host
        return ""
    try:
        socket.create_connection((place.hostname, place.port or _HTTPS), _WAIT_S).close()
    except OSError as error:
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:  # which copies it
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
        return f"{place.hostname} cannot be reached ({error.strerror or error}), {_FETCH}"
    return ""
