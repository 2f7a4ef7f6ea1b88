"""The one shape of a tool: parameters, findings, result envelope, errors, registry."""
