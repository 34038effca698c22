"""What `make lab` serves: the checkout, whose own notebooks can be read and run, and are changed by no save."""

import re

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

OF_THE_CHECKOUT = re.compile(r"notebooks/\d\d_\w+\.ipynb")


class CheckoutManager(AsyncLargeFileManager):
    """Files of the checkout. JupyterLab does not save a notebook that is not writable, and says so."""

    async def get(self, path, *args, **options):
        model = await super().get(path, *args, **options)
        if OF_THE_CHECKOUT.fullmatch(path.strip("/")):
            model["writable"] = False
        return model


c.ServerApp.contents_manager_class = CheckoutManager  # noqa: F821  # Jupyter gives `c`
