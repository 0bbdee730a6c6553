"""The playground: a local web page for trying out models.

    kerasbert play my_classifier bert_mini_demo_en_uncased

It uses Starlette (7 packages, no network access), and its page needs no build step. Gradio (52
packages, checks for updates online), Panel and NiceGUI were not used, because they have no such
figures, no attention that is shown on hover, and no slider over layers.

In `page/`, `pictures.js` and `pictures.css` hold the figures, which do not depend on the
playground, and `strings.js` holds the texts in three languages.
"""
