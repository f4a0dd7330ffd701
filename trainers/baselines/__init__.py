"""Training of the baselines in CoMap's Table 1: SFT, IWM, WKM and ITP."""
