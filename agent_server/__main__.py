"""``python -m whystall.agent_server``: the command line."""

from whystall.agent_server.interfaces.cli.main import main

main()
