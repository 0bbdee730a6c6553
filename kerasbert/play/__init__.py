"""The playground: a local web page for trying out models.

    kerasbert play my_classifier bert_mini_demo_en_uncased

It is built on Starlette (7 packages, no network access) with a page that needs no build step.
Gradio (52 packages, checks for updates online), Panel and NiceGUI lack figures, attention on hover
and a slider over layers.

In `page/`, `pictures.js` and `pictures.css` hold the figures, which do not depend on the
playground, and `strings.js` the texts in three languages.
"""
