"""What a question's words say about the name that answers it, and how texts put a relation."""

from __future__ import annotations

from dynbranch.wording.words import stem, word_set

PEOPLE = word_set(
    """
    who whom whose singer artist actor actress director author writer performer composer player
    father mother brother sister sibling spouse wife husband son daughter child founder founded man
    woman person president king queen leader screenwriter producer developer creator physicist
    musician cast member plays played wrote directed
    """
)
PLACES = word_set(
    """
    city county state country place town where region province district born birth capital river
    lake located location territory territorial municipality village island area continent
    headquarters formation citizenship
    """
)

_PUT = {
    "performer": "by singer band artist recorded song album",
    "cast": "starring stars star plays as film",
    "plays": "as portrayed starring role actor actress played",
    "played": "as portrayed starring role actor actress plays",
    "spouse": "married wife husband marriage",
    "sibling": "brother sister",
    "father": "son daughter",
    "mother": "son daughter",
    "child": "son daughter father mother",
    "author": "written novel book by wrote",
    "wrote": "written by author writer",
    "director": "directed film",
    "producer": "produced",
    "composer": "music composed",
    "founded": "founder founded established",
    "label": "released records label",
    "educated": "university graduated attended studied college",
    "employer": "worked professor joined",
    "birth": "born",
    "died": "death died",
    "location": "in located",
    "located": "in located",
    "publisher": "published",
    "developer": "developed",
    "manufacturer": "built made manufactured produced",
    "owner": "owned owns bought",
    "owned": "owner subsidiary",
    "operator": "operated",
    "character": "fictional",
    "country": "nation republic kingdom",
    "citizenship": "born american british",
    "capital": "seat capital",
}
_TOLD_BY = {stem(word): frozenset(map(stem, put.split())) for word, put in _PUT.items()}


def told_by(wanted: frozenset[str]) -> frozenset[str]:
    """Stems by which a text may put the relations that these stems name."""
    return frozenset().union(*(_TOLD_BY[word] for word in wanted if word in _TOLD_BY))
