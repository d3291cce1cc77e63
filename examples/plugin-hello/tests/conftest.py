pytest_plugins = ["fastcni.testing"]
