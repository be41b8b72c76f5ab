"""Formats and budgets are chosen for each request. Bytes come from the allocator."""
import quire

engine = quire.Engine()
document = "The quick brown fox jumps over the lazy dog. " * 60
for kv in (quire.Kv(), quire.Kv(format="int8"), quire.Kv(format="hadamard-int4", allow_lossy=True),
           quire.Kv(budget=quire.Budget("snapkv", ratio=0.25))):
    answer = engine.generate(document, max_tokens=4, temperature=0, kv=kv)
    print(f"{answer.kv['bytes'] / 1e6:6.2f} MB  {kv.format or 'f16'} {kv.budget.policy if kv.budget else ''}")
