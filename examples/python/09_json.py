"""An answer that obeys a JSON schema."""
import json

import quire

engine = quire.Engine()
schema = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}}
answer = engine.chat("Describe a person called Ada who is 36.", max_tokens=60, temperature=0, guided_json=schema)
print(json.loads(answer))
