"""The playground: a page on this machine on which models are tried out.

    kerasbert play my_classifier bert_mini_demo_en_uncased

It is Starlette (7 packages, and it asks nobody) and a page of our own without a build: what one
tries is pictures, attention on hover and layers on a slider, which Gradio (52 packages, and it
looks for news of itself), Panel and NiceGUI have none of.

`page/` has the pictures in `pictures.js` and `pictures.css`, which know nothing of the playground,
and its words in three languages in `strings.js`.
"""
