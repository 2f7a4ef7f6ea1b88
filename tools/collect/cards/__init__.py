"""State of accelerators of Huawei (Ascend) and AMD, by what their own programs print; the collector ``card_state``."""
