"""A report with fields: the program writes the frame, the model the values, and a grammar holds it to the schema.

python examples/json_report.py           # against the cluster of `make up`
"""

from __future__ import annotations

import json
from typing import Any

from pando import lang as sgl

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "is_capital": {"type": "boolean"},
    },
    "required": ["name", "country", "is_capital"],
    "additionalProperties": False,
}


@sgl.function
def report(s: Any, city: str) -> None:
    s += sgl.user(f"Describe the city {city} as JSON with name, country and is_capital.")
    s += sgl.assistant(sgl.gen("report", max_tokens=64, json_schema=json.dumps(CITY)))


@sgl.function
def form(s: Any, city: str) -> None:
    s += f"Facts about {city} as JSON:\n"
    with s.var_scope("form"):
        s += '{"city": "' + city + '", "inhabitants": ' + sgl.gen("inhabitants", max_tokens=8, regex="[1-9][0-9]{3,6}")
        s += ', "continent": "' + sgl.select("continent", ["Africa", "America", "Asia", "Europe"]) + '"}'


def main() -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint())
    print(json.loads(report.run(city="Paris", temperature=0)["report"]))
    print(json.loads(form.run(city="Rome", temperature=0)["form"]))


if __name__ == "__main__":
    main()
