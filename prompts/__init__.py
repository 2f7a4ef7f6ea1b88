"""Every word a person or a model is shown, English and Chinese. Imports no other room."""
