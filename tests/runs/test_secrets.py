import pytest
from hypothesis import given
from hypothesis import strategies as st
from secret_texts import COMMIT, PLANTED, around, assigned, between, hexes, left_of, tokens, urls

from workbench.runs.secrets import hide_tokens, looks_like_token, map_text, stream_hider


@given(around, tokens, around)
def test_a_token_goes_whatever_stands_around_it(before, token, after):
    assert token not in hide_tokens(between(before, token, after))


@given(around, st.one_of(assigned, urls), around)
def test_a_value_with_a_secret_s_name_and_a_password_in_a_url_go(before, planted, after):
    text, secret = planted
    assert secret not in hide_tokens(between(before, text, after)), text


@given(st.text(), tokens)
def test_a_token_goes_from_any_place_within_text_of_any_kind(text, token):
    for n in range(0, len(text) + 1, 7):
        assert token not in hide_tokens(f"{text[:n]} {token} {text[n:]}")


def test_names_in_structures_make_their_values_tokens():
    def of(token):
        argv = ["x", "--hf-token", token, "--steps", "3"]
        return {"env": {"HF_TOKEN": token, "n": 3}, "argv": argv, "eos_token": "</s>"}

    assert map_text(of("abc"), hide_tokens) == of("[token]")
    assert map_text({"a": 1, "A": 2}, str.upper) == {"A": 1, "A'": 2}  # keys that become equal stay two


@given(hexes)
def test_forty_hex_digits_are_a_key_only_beside_wandb(digits):
    assert hide_tokens(f"wandb: {digits}") == "wandb: [token]"
    assert hide_tokens(f"tree {digits}") == f"tree {digits}"


@pytest.mark.parametrize(
    "name, value, secret",
    [("model", "f" * 40, True), ("x", "hf_" + "Ab1" * 8, True), ("api_key", "abc1", True), ("hf_" + "Ab1" * 8, "", True),
     ("revision", COMMIT, False), ("eos_token", "</s>", False), ("model", "sk-learn", False), ("seed", "3", False)]
)  # fmt: skip
def test_a_secret_is_known_by_value_or_name_and_a_commit_is_none(name, value, secret):
    assert looks_like_token(name, value) is secret


@pytest.mark.parametrize("unseen", ["\u200b", "\x00", "\u202e", "\xad"])
def test_characters_that_cannot_be_seen_do_not_save_a_token(unseen):
    assert hide_tokens(f"a hf_AbCdEfGh{unseen}IjKl12345678") == "a [token]"
    assert hide_tokens(f"api{unseen}_key={unseen}abc{unseen}1") == "api_key=[token]"
    assert hide_tokens(f"a{unseen}b") == f"a{unseen}b"
    assert hide_tokens(f"x{unseen}hf_AbCdEfGhIjKl12345678") == f"x{unseen}[token]"


LONG = "Ab1" * 12
FORMS = f"""hf_{LONG} api_org_{LONG} github_pat_{LONG} glpat-{LONG}
gho_{LONG} ghu_{LONG} ghs_{LONG} ghr_{LONG} sk_{LONG} rk-{LONG} rk_{LONG} pk-{LONG} pk_{LONG}
AKIA{"A1" * 8} ASIA{"A1" * 8} AIza{LONG} GOCSPX-{LONG} xoxb-{LONG} nvapi-{LONG} wandb_v1_{LONG}
r8_{LONG} tgp_v1_{LONG} fw_{LONG} pplx-{LONG} dapi{"a1" * 16} npm_{LONG} pypi-AgEIcHlwaS5vcmc{LONG} dckr_pat_{LONG}
SG.{LONG}.{LONG} hvs.{LONG} AGE-SECRET-KEY-{"1Q" * 29} 123456789:AA{LONG} api.telegram.org/bot123456789:AA{LONG}/send
https://discord.com/api/webhooks/123456789012345678/{LONG} {{"username":"q","key":"{"a1" * 16}"}}
access-key=q8 access_key_id=q8 private-key=q8
secret=q8 passwd=q8 passphrase=q8 credential=q8 authorization=q8 gitlab_token=q8 x-amz-signature=q8 password=>q8
pa\u017f\u017fword=q8 api_\u212aey=q8 X_PASSWD=q8 MY_CREDENTIALS=q8 --client-secret=q8""".split()
BLANKS = ["API key: q8", "API Key = q8", "secret key: q8", "access key: q8", "HF_TOKEN -> q8", f"sk-{'q' * 50}"]
BLANKS += [f"-----BEGIN RSA PRIVATE KEY-----{LONG}", f"BEARER {LONG}", "--my-token q8"]


@pytest.mark.parametrize("secret", FORMS + BLANKS)
def test_no_form_of_a_secret_is_passed_over_unread(secret):
    hidden = hide_tokens(f"a {secret} b")
    assert "[token]" in hidden and LONG not in hidden and "q8" not in hidden and "a1" * 9 not in hidden


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[36mapi_key\x1b[0m=\x1b[35ms3cretvalue42\x1b[0m",  # structlog's colours
        r'{"config": "{\"api_key\": \"s3cretvalue42\", \"lr\": 1}"}',  # JSON within JSON
    ],
)
def test_colours_and_escaped_quotes_do_not_save_a_secret(text):
    assert "s3cretvalue42" not in hide_tokens(text) and "api_key" in hide_tokens(text)


@pytest.mark.parametrize("text", PLANTED)
def test_a_usual_secret_goes_in_any_spelling_and_twice_is_once(text):
    assert left_of(text) and not left_of(hide_tokens(text))
    assert hide_tokens(hide_tokens(text)) == hide_tokens(text)


@pytest.mark.parametrize(
    "text",
    ["max_tokens=80 eos_token='</s>' token: the", "author: Me, passed: 12, PASS: 3", "sort(key='step')",
     "stop_token=<|im_end|>",
     "first_token: 12", "compass=3 bypass: yes", "pad_token_id=3", "password: str", "x-axis: step 10", "The secret is out",
     "token='opals'", "login to the hub", "valid_token: 3",
     "set HF_TOKEN in the environment", "HF_TOKEN is not set", "my password is required", "user_tokens: 1200", "MAX_TOKENS=80",
     "TOKENS=1024", "the passwords: never stored", "mysql -h db -u me -p", "invalid_token: 3", "sk-learn-contrib-of-the-year",
     "if self._api_key:", "for k in KEYS:", "<th>HF_TOKEN</th><th>seed</th>", 'api_key = os.environ["OPENAI_API_KEY"]',
     "auth=(user, password)", '{"name": "lr", "value": "x1"}', "secrets=)", "a secret v1beta2", "fw_layer_norm_weight_2",
     '["hf_token", "seed"]', '_SORT_KEYS = {"name", "size"}', "npm_config_registry_of_a_company_1", "dapi_client_of_ours",
     '["a token"] = [-slope[0]]', "the --secrets file of HF"]
)  # fmt: skip
def test_words_that_are_like_names_of_secrets_stay(text):
    assert hide_tokens(text) == text


def test_a_value_that_ends_in_an_equals_sign_is_no_annotation():
    assert hide_tokens("HF_TOKEN: qaaaaaaaa7=0") == "HF_TOKEN: [token]"
    assert hide_tokens("--api-key = qaaaaaaaa7") == "--api-key = [token]"
    assert hide_tokens('HF_TOKEN: str | None = "qaaaaaaaa7"') == 'HF_TOKEN: str | None = "[token]"'


def test_private_keys_without_an_end_are_hidden():
    begin = "-----BEGIN PRIVATE KEY-----"
    assert hide_tokens(f"{begin}!" * 3) == "[token]!" * 3
    assert hide_tokens(f"{begin}!{begin}\nab-c!\n-----END PRIVATE KEY----- x") == "[token]![token] x"


@pytest.mark.parametrize(
    "value, secret",
    [({"api_key": ["s3", {"a": "s3"}], "n": 1}, {"api_key": ["[token]", {"a": "[token]"}], "n": 1}),
     ({"name": "HF_TOKEN", "value": "s3"}, {"name": "HF_TOKEN", "value": "[token]"}),
     ({"description": "password:", "value": "s3"}, {"description": "password:", "value": "[token]"}),
     ({"_model_name": "PasswordModel", "value": "s3"}, {"_model_name": "PasswordModel", "value": "[token]"}),
     ({"api_key": None, "stops": ["</s>"]}, {"api_key": None, "stops": ["</s>"]})]
)  # fmt: skip
def test_a_secret_s_name_hides_all_texts_of_its_value(value, secret):
    assert map_text(value, hide_tokens) == secret


@pytest.mark.parametrize(
    "pieces",
    [("HF_TOKEN=", "s3cretvalue42\n"), ("HF_TOKEN:\n", "s3cretvalue42\n"), ("\napi_", "key: s3cretvalue42"),
     ("HF_TOKEN=s3cret", "value42\n"), ("a", "b\n", "password: ", "s3cretvalue42")]
)  # fmt: skip
def test_a_name_and_its_value_in_two_pieces_are_hidden(pieces):
    hide = stream_hider()
    shown = "".join(map(hide, pieces))
    assert "value42" not in shown and "[token]" in shown


@given(st.lists(st.text("ab =\n\r1")))
def test_pieces_without_a_secret_stay_as_they_are(pieces):
    hide = stream_hider()
    assert [hide(piece) for piece in pieces] == pieces


KEY_LINES = [f"MIIE{n}" + "Ab1xY2Ab1xY2" * 5 for n in range(8)] + ["0a1b2c3d0a1b2c3d=="]
KEY = ["-----BEGIN RSA PRIVATE KEY-----", *KEY_LINES, "-----END RSA PRIVATE KEY-----"]
ENCRYPTED = [KEY[0], "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0A1B", "", *KEY[1:]]
PGP = [
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "Version: 2",
    "",
    *KEY_LINES,
    "=aB1x",
    "-----END PGP PRIVATE KEY BLOCK-----",
]


@pytest.mark.parametrize("key", [KEY, ENCRYPTED, PGP])
@pytest.mark.parametrize("prefix", ["", "INFO:root:", "12:00 [INFO] a.py:3 - "])
def test_a_key_that_comes_line_by_line_is_hidden(key, prefix):
    lines = [f"{prefix}{line}\n" for line in ["before", *key, "behind (it)", "the last"]]
    hide = stream_hider()
    shown = "".join(map(hide, lines))
    assert shown == f"{prefix}before\n{prefix}[token]\n{prefix}behind (it)\n{prefix}the last\n"
    assert "".join(map(stream_hider(), ["".join(lines)])) == shown


def test_a_key_in_pieces_of_any_size_is_hidden():
    text = "\n".join(["before", *KEY, "behind"])
    begun = text.index("MIIE")
    for size in (1, 7, 100, len(text)):
        pieces = [text[:begun], *(text[n : n + size] for n in range(begun, len(text), size))]
        assert "".join(map(stream_hider(), pieces)) == "before\n[token]\nbehind"


@pytest.mark.parametrize("lines", [KEY[:-1], KEY[:4], KEY[:3] + KEY[:4]])
def test_a_key_without_an_end_hides_one_line_behind_it(lines):
    hide = stream_hider()
    shown = "".join(hide(f"{line}\n") for line in [*lines, "step 1 (of 3)", "step 2 (of 3)", "step 3 (of 3)"])
    assert "MIIE" not in shown
    assert shown.endswith("[token]\nstep 2 (of 3)\nstep 3 (of 3)\n")


def test_words_about_a_key_hide_the_rest_of_their_line_only():
    lines = ["expected -----BEGIN PRIVATE KEY----- in the file\n", "step 1\n", "step 2\n"]
    hide = stream_hider()
    assert "".join(map(hide, lines)) == "expected [token]\nstep 1\nstep 2\n"


def test_what_is_hidden_of_a_key_has_a_limit():
    hide = stream_hider()
    shown = [hide(f"{line}\n") for line in [KEY[0], *(f"{n:064d}" for n in range(1000))]]
    assert 19_000 < 65 * shown.count("") < 21_000
    assert shown[-1] == f"{999:064d}\n"
