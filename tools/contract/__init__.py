"""The common interface of tools: parameters, findings, result envelope, errors, registry."""
