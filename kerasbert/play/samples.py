"""Example texts by panel and language; "{mask}" stands for a model's mask token."""

_EN_CONTEXT = (
    "The museum is open from ten to six every day but Monday. Tickets cost twelve euros, and "
    "children under six enter free."
)
_KO_CONTEXT = (
    "박물관은 월요일을 제외하고 매일 오전 열 시부터 오후 여섯 시까지 문을 엽니다. 입장료는 "
    "만 이천 원이며 여섯 살 미만 어린이는 무료입니다."
)
_JA_CONTEXT = (
    "博物館は月曜日を除き、毎日午前十時から午後六時まで開館しています。入場料は千二百円で、"
    "六歳未満の子どもは無料です。"
)
_TEXTS = {
    "en": [
        "The train to Berlin was late again.",
        "Our train arrived two hours behind schedule.",
        "This soup needs more salt.",
        "The kitchen served a wonderful dinner.",
        "Interest rates rose in the third quarter.",
        "The bank raised its rates.",
    ],
    "ko": [
        "프린터가 인쇄하지 않습니다.",
        "문서를 인쇄할 수 없습니다.",
        "암호가 틀렸습니다.",
        "비밀번호를 잊어버렸습니다.",
        "인터넷에 연결할 수 없습니다.",
        "네트워크 연결이 끊어졌습니다.",
    ],
    "ja": [
        "プリンターが印刷しません。",
        "文書を印刷できません。",
        "パスワードが違います。",
        "パスワードを忘れました。",
        "インターネットに接続できません。",
        "ネットワークの接続が切れました。",
    ],
}
_SENTENCE = {
    "en": "The old museum in Rome was wonderful, but the queue was far too long.",
    "ko": "로마의 오래된 박물관은 훌륭했지만 줄이 너무 길었다.",
    "ja": "ローマの古い博物館は素晴らしかったが、列が長すぎた。",
}
# Lists of dicts by panel: `language` and the request's fields.
EXAMPLES = {
    # The presets in the package answer these with a likely word; `tests/play` checks it.
    "fill": [
        {"language": "en", "text": "She wrote a {mask} to her mother."},
        {"language": "en", "text": "Click the {mask} button to save the file."},
        {"language": "ko", "text": "마우스 오른쪽 {mask} 누르십시오."},
        {"language": "ko", "text": "사용자 이름과 {mask} 입력하십시오."},
        {"language": "ja", "text": "画面の{mask}るさを調整します。"},
        {"language": "ja", "text": "文書を印{mask}します。"},
    ],
    "classify": [{"language": k, "text": v} for k, v in _SENTENCE.items()],
    "tag": [
        {"language": "en", "text": "Marie Curie moved from Warsaw to Paris to study."},
        {"language": "ko", "text": "세종대왕은 한양에서 훈민정음을 만들었다."},
        {"language": "ja", "text": "夏目漱石は東京で生まれ、ロンドンに留学した。"},
    ],
    "answer": [
        {"language": "en", "text": "When is the museum closed?", "text_b": _EN_CONTEXT},
        {"language": "ko", "text": "입장료는 얼마인가요?", "text_b": _KO_CONTEXT},
        {"language": "ja", "text": "入場料はいくらですか。", "text_b": _JA_CONTEXT},
    ],
    "choose": [
        {
            "language": "en",
            "text": "She put the kettle on the stove.",
            "texts": ["Soon the water boiled.", "The kettle read a book.", "Snow fell upwards."],
        },
        {
            "language": "ko",
            "text": "주전자를 불에 올렸다.",
            "texts": ["곧 물이 끓었다.", "주전자가 책을 읽었다."],
        },
        {
            "language": "ja",
            "text": "やかんを火にかけた。",
            "texts": ["まもなくお湯が沸いた。", "やかんが本を読んだ。"],
        },
    ],
    "write": [
        {"language": "en", "text": "Once upon a time"},
        {"language": "ko", "text": "옛날 옛적에"},
        {"language": "ja", "text": "昔々、"},
    ],
    "similar": [{"language": k, "texts": v} for k, v in _TEXTS.items()],
    "search": [
        {"language": "en", "text": "a delay on the railway", "texts": _TEXTS["en"]},
        {"language": "ko", "text": "로그인할 수 없습니다", "texts": _TEXTS["ko"]},
        {"language": "ja", "text": "ログインできません", "texts": _TEXTS["ja"]},
    ],
    "attention": [{"language": k, "text": v} for k, v in _SENTENCE.items()],
    "tokens": [{"language": k, "text": v} for k, v in _SENTENCE.items()],
}
