"""The test kit for CNI plugins: a fake kernel, real namespaces, and fixtures of pytest for both.

    pytest_plugins = ["fastcni.testing"]        # in conftest.py: the fixtures

It needs pytest (pip install fastcni[testing]). Nothing else in fastcni imports it.
"""

import pytest

pytest.register_assert_rewrite("fastcni.testing.fake_runtime", "fastcni.testing.namespaces",
                               "fastcni.testing.real_runtime")

from fastcni.testing.fake_runtime import FakeRuntime, fake_runtime, fake_sockets  # noqa: E402
from fastcni.testing.namespaces import host_netns, needs_root, pod_netns  # noqa: E402
from fastcni.testing.real_runtime import RealRuntime, real_runtime  # noqa: E402

__all__ = ["FakeRuntime", "RealRuntime", "fake_runtime", "fake_sockets", "host_netns", "needs_root", "pod_netns",
           "real_runtime"]
