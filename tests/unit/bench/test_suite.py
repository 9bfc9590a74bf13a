import importlib.util

from bench import suite


def test_every_question_has_a_module_that_answers_it() -> None:
    for name in suite.QUESTIONS:
        spec = importlib.util.find_spec(f"bench.questions.{name}")
        assert spec is not None, name
