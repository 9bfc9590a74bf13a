"""The grammar of rules.

    W-001: WEIGHT 31 USE HDD WHEN SIZE > 10 AND SIZE < 100 AND TYPE == TEXT

Words of the language may be written in any case. A value may be a bare word or a quoted text; the
lexer knows from the place whether `QUEUE` is a keyword or a value. NOT binds closer than AND, AND
closer than OR.
"""

from __future__ import annotations

from typing import Final

#: What a rule or a condition may have at most.
TEXT_CHARS_MAX: Final = 8_192

GRAMMAR: Final = r"""
rule: [LABEL ":"] _WEIGHT NUMBER _USE device [_WHEN condition]

?condition: any_of
?any_of: all_of (_OR all_of)*
?all_of: part (_AND part)*
?part: negation | "(" condition ")" | test
negation: _NOT part

?test: property COMPARATOR value            -> compare
     | property _IN "(" value ("," value)* ")"  -> one_of
     | property "." METHOD [_call]          -> method
     | FIELD                                -> word
property: FIELD ["(" value ")"]
_call: "(" [value] ")"

device: QUOTED | WORD
value: NUMBER | QUOTED | WORD

_WEIGHT.2: /WEIGHT(?!\w)/i
_USE.2: /USE(?!\w)/i
_WHEN.2: /WHEN(?!\w)/i
_AND.2: /AND(?!\w)/i
_OR.2: /OR(?!\w)/i
_NOT.2: /NOT(?!\w)/i
_IN.2: /IN(?!\w)/i
COMPARATOR: "==" | "!=" | "<=" | ">=" | "<" | ">"
LABEL: /[^\s:"#]+(?=\s*:)/i
NUMBER: /[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?([a-z]+)?/i
QUOTED: /"([^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u[0-9a-f]{4})*"/i
FIELD: /[a-z_][a-z0-9_]*/i
METHOD: /[a-z_]+/i
WORD: /[a-z_][\w.\-]*/i

%import common.WS
%ignore WS
"""

#: How a place where something else was expected is told to people.
EXPECTED: Final = {
    "_WEIGHT": "WEIGHT",
    "_USE": "USE",
    "_WHEN": "WHEN",
    "_AND": "AND",
    "_OR": "OR",
    "_NOT": "NOT",
    "_IN": "in (..)",
    "COMPARATOR": "one of == != < <= > >=",
    "LABEL": "the id of the rule and a colon",
    "NUMBER": "a number",
    "QUOTED": 'a text in double quotes, such as "fast-db"',
    "WORD": "a word",
    "FIELD": "a keyword such as SIZE or TYPE",
    "METHOD": "isPresent or contains",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "COLON": ":",
    "DOT": ".isPresent or .contains(..)",
    "$END": "no more",
}
