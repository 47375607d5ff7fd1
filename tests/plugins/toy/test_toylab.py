"""The suite of this plugin: the tests that ship with distdoctor, held to what is installed."""

from distdoctor.pytest_plugin.contracts import PluginContracts


class TestPlugin(PluginContracts):
    distribution = "toylab-distdoctor"
