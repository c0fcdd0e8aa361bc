#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/families/hf_family.h"
#include "megatron/families/mapping_builder.h"
#include "megatron/plan/parameters/parameters.h"

// T5s as folders of Hugging Face (v1.0: ReLU and a tied head; v1.1 and mT5: gated GELU and a head of its own).
namespace megatron::models::t5 {
namespace {

using namespace families;
using nlohmann::json;
using plan::ModelShape;

constexpr std::int64_t kMaxStackLayers = kMaxLayers / 2;  // of each stack

/// What transformers calls a feed-forward network; for "gated-gelu" it takes GELU's approximation.
struct FeedForward {
  const char *theirs, *activation;
  bool gated;
};
constexpr FeedForward kFeedForwards[] = {{"relu", "relu", false},     {"gated-gelu", "gelu_tanh", true},
                                         {"gelu", "gelu", false},     {"gelu_new", "gelu_tanh", false},
                                         {"silu", "silu", false},     {"gated-silu", "silu", true},
                                         {"gated-relu", "relu", true}};

const FeedForward* feed_forward_of(const config::ModelConfig& model) {
  for (const FeedForward& known : kFeedForwards)
    if (model.activation == known.activation && model.gated_linear_unit == known.gated) return &known;
  return nullptr;
}

void read_feed_forward(JsonFields& fields, bool multilingual, config::ModelConfig& model) {
  const std::string name = fields.text("feed_forward_proj", multilingual ? "gated-gelu" : "relu");
  const FeedForward* found = nullptr;
  for (const FeedForward& known : kFeedForwards)
    if (name == known.theirs) found = &known;
  if (found == nullptr)
    fields.refuse("feed_forward_proj", "relu, gated-gelu, gelu, gelu_new, silu, gated-silu or gated-relu");
  model.activation = found->activation;
  model.gated_linear_unit = found->gated;
  const std::string bare = found->gated ? name.substr(name.find('-') + 1) : name;
  fields.must_be("dense_act_fn", name == "gated-gelu" ? "gelu_new" : bare);  // which transformers writes beside it
  fields.must_be("is_gated_act", found->gated);
}

void read_t5(const json& object, JsonFields& fields, FolderConfig& folder) {
  const bool multilingual = fields.text("model_type", "t5") == "mt5";
  const std::string usual = multilingual ? "MT5ForConditionalGeneration" : "T5ForConditionalGeneration";
  const json named = object.value("architectures", json());
  if (!named.is_null() && named != json::array({usual}) && named != json::array({"T5WithLMHeadModel"}))
    fields.refuse("architectures", "[\"" + usual + "\"]");
  fields.ignore({"initializer_factor"});  // of weights that are drawn
  config::ModelConfig& model = folder.model;
  model.architecture = "t5";
  model.num_layers = fields.size("num_layers", kMaxStackLayers);
  model.decoder_num_layers = fields.size("num_decoder_layers", kMaxStackLayers, model.num_layers);
  model.hidden_size = fields.size("d_model", kMaxWidth);
  model.kv_channels = fields.size("d_kv", kMaxWidth);
  model.num_attention_heads = fields.size("num_heads", kMaxWidth);
  model.ffn_hidden_size = fields.size("d_ff", kMaxWidth);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.max_position_embeddings = fields.size("n_positions", kMaxPositions, 512);
  model.position_embedding_type = "relative";
  model.relative_attention_num_buckets = fields.size("relative_attention_num_buckets", kMaxWidth, 32);
  model.relative_attention_max_distance = fields.size("relative_attention_max_distance", kMaxPositions, 128);
  if (model.relative_attention_num_buckets < 4) fields.refuse("relative_attention_num_buckets", "at least 4");
  if (model.relative_attention_max_distance <= model.relative_attention_num_buckets / 2)
    fields.refuse("relative_attention_max_distance", "above half of relative_attention_num_buckets");
  read_feed_forward(fields, multilingual, model);
  model.normalization = "RMSNorm";
  model.add_bias_linear = false;
  model.layernorm_epsilon = fields.number("layer_norm_epsilon", 1e-6);
  model.hidden_dropout = model.attention_dropout = fields.number("dropout_rate", 0.1);
  // A tied head is scaled, by d_model^-1/2, and one of its own is not. transformers 5 says of both that they are tied;
  // an mT5's never is.
  const bool tied = fields.flag("tie_word_embeddings", true),
             scaled = fields.flag("scale_decoder_outputs", tied && !multilingual);
  if (scaled && (!tied || multilingual))
    fields.refuse("scale_decoder_outputs", multilingual ? "false" : "false where tie_word_embeddings is");
  model.untie_embeddings_and_output_weights = !scaled;
}

void write_t5(const FolderConfig& folder, const HasTensor&, json& object) {
  const config::ModelConfig& model = folder.model;
  const FeedForward& feed_forward = *feed_forward_of(model);
  const bool tied = !model.untie_embeddings_and_output_weights;
  object.erase("initializer_range");
  object.update({{"model_type", "t5"},
                 {"architectures", {"T5ForConditionalGeneration"}},
                 {"is_encoder_decoder", true},
                 {"num_layers", model.num_layers},
                 {"num_decoder_layers", model.decoder_num_layers > 0 ? model.decoder_num_layers : model.num_layers},
                 {"d_model", model.hidden_size},
                 {"d_kv", model.kv_channels > 0 ? model.kv_channels : model.hidden_size / model.num_attention_heads},
                 {"num_heads", model.num_attention_heads},
                 {"d_ff", model.ffn_hidden_size > 0 ? model.ffn_hidden_size : 4 * model.hidden_size},
                 {"n_positions", model.max_position_embeddings},
                 {"relative_attention_num_buckets", model.relative_attention_num_buckets},
                 {"relative_attention_max_distance", model.relative_attention_max_distance},
                 {"feed_forward_proj", feed_forward.theirs},
                 {"layer_norm_epsilon", model.layernorm_epsilon},
                 {"dropout_rate", model.hidden_dropout},
                 {"initializer_factor", 1.0},
                 {"scale_decoder_outputs", tied}});
}

std::string t5_block(bool encoder, std::int64_t layer) {
  return concat(encoder ? "encoder" : "decoder", ".block.", layer, ".layer.");
}

LayerNames layer_names(const ModelShape& shape, std::int64_t layer) {
  const bool encoder = shape.in_encoder(layer);
  const std::string theirs = t5_block(encoder, encoder ? layer : layer - shape.encoder_layers);
  const std::string self = theirs + "0.SelfAttention.", cross = theirs + "1.EncDecAttention.";
  const std::string last = theirs + (encoder ? "1." : "2."), dense = last + "DenseReluDense.";
  return {{"input_layernorm", {theirs + "0.layer_norm"}},
          {"self_attention.linear_qkv", {self + "q", self + "k", self + "v"}},
          {"self_attention.linear_proj", {self + "o"}},
          {"pre_cross_attn_layernorm", {theirs + "1.layer_norm"}},
          {"cross_attention.linear_q", {cross + "q"}},
          {"cross_attention.linear_kv", {cross + "k", cross + "v"}},
          {"cross_attention.linear_proj", {cross + "o"}},
          {"pre_mlp_layernorm", {last + "layer_norm"}},
          {"mlp.linear_fc1", shape.gated ? std::vector{dense + "wi_0", dense + "wi_1"} : std::vector{dense + "wi"}},
          {"mlp.linear_fc2", {dense + "wo"}}};
}

/// Our names made of a T5 folder's tensors: linear_kv of cross attention has each head's k, then its v; gate above up.
/// A T5 has no biases. `head`: the tensor of an output layer that is not tied.
Mapping t5_table(const ModelShape& shape, const std::string& head) {
  MappingBuilder build;
  build.whole("embedding.word_embeddings.weight", "shared.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    build.layer(shape.layer(layer), layer_names(shape, layer));
  for (const bool encoder : {true, false}) {
    build.whole(ModelShape::position_table(encoder),
                t5_block(encoder, 0) + "0.SelfAttention.relative_attention_bias.weight",
                {shape.position_buckets, shape.num_heads});
    const std::string stack = encoder ? "encoder." : "decoder.";
    build.norm(stack + "final_layernorm", stack + "final_layer_norm", shape);
  }
  if (!shape.tied_output) build.whole("output_layer.weight", head, {shape.vocab, shape.hidden});
  return build.take();
}

constexpr std::string_view kTypes[] = {"t5", "mt5"};

constexpr SecondName kSecondNames[] = {{"encoder.embed_tokens.weight", plan::kWordEmbedding},
                                       {"decoder.embed_tokens.weight", plan::kWordEmbedding}};

constexpr HfFamily kFamilies[] = {
    {.name = "t5",
     .architecture = "t5",
     .form = "a T5 with RMSNorm, without biases, with one key and value head a head and the activation relu, "
             "gelu_tanh, gelu or silu, or gated gelu_tanh, silu or relu",
     .model_types = kTypes,
     .read = read_t5,
     .holds =
         [](const config::ModelConfig& model, const ModelShape& shape) {
           return model == config::AttentionVariant{} && model == config::LayerVariant{} && shape.rms_norm &&
                  !shape.linear_bias && model.position_embedding_type == "relative" &&
                  shape.groups() == shape.num_heads && feed_forward_of(model) != nullptr &&
                  !model.apply_residual_connection_post_layernorm;
         },
     .write = write_t5,
     .table =
         [](const ModelShape& shape, const HasTensor& has) {
           // transformers leaves out a head that is the embedding's matrix, whether it is scaled or not.
           return t5_table(shape, has("lm_head.weight") ? "lm_head.weight" : "shared.weight");
         },
     .written_table = [](const ModelShape& shape, const HasTensor&) { return t5_table(shape, "lm_head.weight"); },
     .needs_no_reading =
         [](const FolderConfig& folder,
            const std::string& name) {  // the last: of the first T5s, where it is not used
           return name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight" ||
                  name.ends_with("EncDecAttention.relative_attention_bias.weight") || is_tied_head(folder, name);
         },
     .second_names = kSecondNames}};

}  // namespace

constexpr const HfFamily* kRows[] = {&kFamilies[0]};

extern const ModelFolders kFolders;
constinit const ModelFolders kFolders{.families = kRows};

}  // namespace megatron::models::t5
