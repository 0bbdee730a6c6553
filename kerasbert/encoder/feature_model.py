"""A model on an encoder's weights that also returns hidden states and attention."""

import keras


@keras.saving.register_keras_serializable(package="kerasbert", name="_FeatureModel")
class FeatureModel(keras.Model):
    """Model with additional outputs; see `BertBackbone.feature_model`."""

    def __init__(
        self,
        backbone,
        output_hidden_states=True,
        output_attentions=False,
        name="feature_model",
        **kwargs,
    ):
        super().__init__(dtype=backbone.dtype_policy, name=name, **kwargs)
        self.backbone = backbone
        self.output_hidden_states = output_hidden_states
        self.output_attentions = output_attentions
        self.built = True

    def call(self, inputs):
        hidden_states, attentions = self.backbone._encode(
            self.backbone.fill_in(inputs), self.output_attentions
        )
        outputs = self.backbone._named_outputs(hidden_states)
        if self.output_hidden_states:
            outputs["hidden_states"] = hidden_states
        if self.output_attentions:
            outputs["attentions"] = attentions
        return outputs

    def get_config(self):
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "output_hidden_states": self.output_hidden_states,
            "output_attentions": self.output_attentions,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return cls(**{**config, "backbone": backbone})
