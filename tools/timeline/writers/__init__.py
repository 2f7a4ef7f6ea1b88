"""Writers of trace files: ftrace text, Chrome JSON, MindStudio's database, Perfetto."""
