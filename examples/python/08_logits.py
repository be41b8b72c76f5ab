"""Logits as a numpy array."""
import numpy as np

import quire

engine = quire.Engine()
logits = engine.logits("The sky is")
best = np.argsort(logits)[::-1][:5]
chance = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
for token in best:
    print(f"{chance[token]:.3f} {engine.detokenize([int(token)])!r}")
