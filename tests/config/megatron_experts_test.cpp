#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/config/megatron_words.h"

// Megatron-LM's flags of mixtures of experts, by its argument parser and its router.
namespace megatron::config {
namespace {

using testing::HasSubstr;

constexpr const char* kSmallDense =
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --train-iters 100 --lr 1e-4 ";

constexpr int kRanks = 4;
RunConfig experts_recipe(const std::string& words) { return translation_of_words(words, kRanks).config; }
std::string refusal_of_experts(const std::string& words) { return refusal_of_words(words, kRanks); }

TEST(MegatronMultiToken, IsThatOfTheModel) {
  const std::string rope = std::string(kSmallDense) + "--position-embedding-type rope ";
  const ModelConfig m = experts_recipe(rope + "--mtp-num-layers 2 --mtp-loss-scaling-factor 0.3").model;
  EXPECT_EQ(std::tuple(m.mtp_num_layers, m.mtp_loss_scaling_factor), std::tuple(2, 0.3));
  const ModelConfig none = experts_recipe(rope + "--mtp-loss-scaling-factor 0.3 --mtp-detach-heads").model;
  EXPECT_EQ(none.mtp_num_layers, 0);
  EXPECT_THAT(refusal_of_experts(rope + "--mtp-num-layers 1 --mtp-detach-heads"), HasSubstr("--mtp-detach-heads"));
}

TEST(MegatronExperts, AreThoseOfTheModelAndItsRanks) {
  const std::string experts = std::string(kSmallDense) +
                              "--disable-bias-linear --num-experts 8 --moe-router-topk 3 --moe-ffn-hidden-size 96 "
                              "--expert-model-parallel-size 4 ";
  const RunConfig run = experts_recipe(
      experts +
      "--moe-layer-freq 2 --moe-shared-expert-intermediate-size 32 --moe-shared-expert-gate "
      "--moe-router-score-function sigmoid --moe-router-topk-scaling-factor 2.5 --moe-z-loss-coeff 1e-3 "
      "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm --moe-router-dtype "
      "fp32 --moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 1");
  const ModelConfig& m = run.model;
  EXPECT_EQ(std::tuple(m.num_experts, m.moe_router_topk, m.moe_ffn_hidden_size, m.moe_layer_freq, run.parallel.ep),
            std::tuple(8, 3, 96, 2, 4));
  EXPECT_EQ(run.parallel.etp, 0) << "as many as of tp";
  const std::string split = "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size ";
  EXPECT_EQ(experts_recipe(experts + split + "1").parallel.etp, 1);
  EXPECT_EQ(experts_recipe(experts + split + "2").parallel.etp, 0);
  EXPECT_EQ(experts_recipe(std::string(kSmallDense) + split + "1").parallel.etp, 0) << "without experts";
  EXPECT_THAT(refusal_of_experts(experts + split + "0"), HasSubstr("fix:  --expert-tensor-parallel-size 1"));
  EXPECT_EQ(std::tuple(m.moe_shared_expert_intermediate_size, m.moe_shared_expert_gate, m.moe_router_score_function),
            std::tuple(32, true, "sigmoid"));
  EXPECT_EQ(std::tuple(m.moe_router_topk_scaling_factor, m.moe_z_loss_coeff, m.moe_aux_loss_coeff),
            std::tuple(2.5, 1e-3, 1e-2));
  EXPECT_FALSE(m.moe_router_pre_softmax);
  EXPECT_TRUE(experts_recipe(experts + "--moe-router-pre-softmax").model.moe_router_pre_softmax);
  const ModelConfig limited =
      experts_recipe(experts +
                     "--moe-router-score-function sigmoid --moe-router-num-groups 4 --moe-router-group-topk 2 "
                     "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.01")
          .model;
  EXPECT_EQ(std::tuple(limited.moe_router_num_groups, limited.moe_router_group_topk,
                       limited.moe_router_enable_expert_bias, limited.moe_router_bias_update_rate),
            std::tuple(4, 2, true, 0.01));
  EXPECT_EQ(m.moe_router_bias_update_rate, 0.001);
  EXPECT_TRUE(experts_recipe(experts + "--moe-per-layer-logging").log.moe_per_layer);
  EXPECT_EQ(experts_recipe(experts + "--moe-input-jitter-eps 0.1").model.moe_input_jitter_eps, 0.1);
  EXPECT_EQ(m.moe_input_jitter_eps, 0);
  // Micro batches here have four sequences.
  EXPECT_THAT(refusal_of_experts(experts + "--moe-expert-capacity-factor 1.5"),
              HasSubstr("capacity is that of each sequence"));
  EXPECT_THAT(refusal_of_experts(experts + "--moe-aux-loss-coeff 1e-2"),
              HasSubstr("fix:  --moe-router-load-balancing-type seq_aux_loss"));
  const std::string none = "--moe-router-load-balancing-type none --moe-aux-loss-coeff 1e-2";
  EXPECT_EQ(experts_recipe(experts + none).model.moe_aux_loss_coeff, 0);
  for (const std::string words :
       {"--moe-router-load-balancing-type sinkhorn", "--moe-aux-loss-coeff 1e-2 1e-3", "--moe-layer-freq ([0]*1+[1]*4)",
        "--moe-layer-freq ([1]*1+[0]*1)", "--moe-router-score-function sqrtsoftplus"})
    EXPECT_THAT(refusal_of_experts(experts + words), HasSubstr(words)) << words;
  EXPECT_THAT(refusal_of_experts(std::string(kSmallDense) + "--expert-model-parallel-size 2"),
              HasSubstr("needs --num-experts"));
}

TEST(MegatronExperts, MayBeginBehindDenseLayers) {
  const std::string experts = std::string(kSmallDense) + "--disable-bias-linear --num-experts 8 --moe-layer-freq ";
  const ModelConfig m = experts_recipe(experts + "([0]*3+[1]*9)").model;
  EXPECT_EQ(std::tuple(m.first_k_dense_replace, m.moe_layer_freq), std::tuple(3, 1));
  EXPECT_EQ(experts_recipe(experts + "2").model.first_k_dense_replace, 0);
  const auto pattern = [&](const std::string& text) {
    const ModelConfig of = experts_recipe(experts + text).model;
    return std::tuple(of.first_k_dense_replace, of.moe_layer_freq);
  };
  EXPECT_EQ(pattern("[0,0,1,1,1,1,1,1,1,1,1,1]"), std::tuple(2, 1));
  EXPECT_EQ(pattern("0,0,0,1,0,0,1,0,0,1,0,0"), std::tuple(3, 3));
  EXPECT_EQ(pattern("[0]*11+[1]"), std::tuple(11, 1));
  EXPECT_EQ(pattern("[1,0]*6"), std::tuple(0, 2));
  EXPECT_THAT(refusal_of_experts(experts + "[1,0,0,1,1,0,0,1,1,0,0,1]"), HasSubstr("--moe-layer-freq"));
  EXPECT_THAT(refusal_of_experts(experts + "([0]*3+[1]*8)"), HasSubstr("--moe-layer-freq ([0]*3+[1]*8)"));
  EXPECT_THAT(refusal_of_experts(experts + "([0]*-1+[1]*13)"), HasSubstr("--moe-layer-freq"));
  std::string nothing, list = "[1";
  for (int i = 0; i < 1 << 16; ++i) {
    nothing += "[0]*0+";
    list += ",1";
  }
  EXPECT_EQ(pattern(nothing + "[0]*3+[1]*9"), std::tuple(3, 1));
  EXPECT_THAT(refusal_of_experts(experts + list + "]"), HasSubstr("--moe-layer-freq"));
}

TEST(MegatronLatents, AreThoseOfTheModel) {
  const std::string latent = std::string(kSmallDense) +
                             "--disable-bias-linear --position-embedding-type rope --qk-layernorm "
                             "--multi-latent-attention ";
  const ModelConfig m = experts_recipe(latent +
                                       "--q-lora-rank 96 --kv-lora-rank 48 --qk-head-dim 40 --qk-pos-emb-head-dim 24 "
                                       "--v-head-dim 56 --rotary-scaling-factor 4 --mscale 0.7 --mscale-all-dim 0.8")
                            .model;
  EXPECT_EQ(std::tuple(m.multi_latent_attention, m.q_lora_rank, m.kv_lora_rank, m.qk_head_dim, m.qk_pos_emb_head_dim,
                       m.v_head_dim, m.kv_channels),
            std::tuple(true, 96, 48, 40, 24, 56, 0));
  EXPECT_EQ(std::tuple(m.rope_scaling_type, m.rope_scaling_factor, m.rope_original_positions, m.mscale,
                       m.mscale_all_dim, m.rotary_interleaved),
            std::tuple("yarn", 4.0, 4096, 0.7, 0.8, true));
  const ModelConfig usual = experts_recipe(latent + "--rope-type rope --rotary-scaling-factor 4").model;
  EXPECT_EQ(std::tuple(usual.q_lora_rank, usual.kv_lora_rank, usual.qk_head_dim, usual.qk_pos_emb_head_dim,
                       usual.v_head_dim, usual.rope_scaling_factor),
            std::tuple(0, 32, 128, 64, 128, 1.0));
  const std::string scaled = latent + "--rope-type rope --mscale-all-dim 0.5 ";
  EXPECT_EQ(experts_recipe(scaled).model.rope_scaling_factor, 1.0);
  EXPECT_THAT(refusal_of_experts(scaled + "--rotary-scaling-factor 4"),
              HasSubstr("--mscale-all-dim 0.5 (a factor of scores without YaRN)"));
  EXPECT_THAT(refusal_of_experts(latent + "--rotary-interleaved"), HasSubstr("--rotary-interleaved"));
  const std::string dense = kSmallDense;
  EXPECT_THAT(refusal_of_experts(dense + "--rope-type yarn"), HasSubstr("--rope-type yarn (YaRN)"));
  const auto plain = translate_megatron_arguments(
      "pretrain_gpt", shell_words(dense + "--kv-lora-rank 64 --mscale 2", "test"), {.world_size = 4});
  EXPECT_FALSE(plain.config.model.multi_latent_attention);
  EXPECT_EQ(plain.config.model.kv_lora_rank, 32);
  ASSERT_EQ(plain.ignored.size(), 2u);
  EXPECT_EQ(plain.ignored.front().text, "without --multi-latent-attention");
}

TEST(MegatronExperts, AreThoseOfGptOss) {
  const ModelConfig m = experts_recipe(std::string(kSmallDense) +
                                       "--num-experts 8 --moe-router-topk 2 --quick-geglu --glu-linear-offset 1.0 "
                                       "--activation-func-clamp-value 7.0 --softmax-type learnable --window-size 127,0 "
                                       "--window-attn-skip-freq 2 --normalization RMSNorm")
                            .model;
  EXPECT_EQ(std::tuple(m.activation, m.gated_linear_unit, m.glu_linear_offset, m.activation_func_clamp_value),
            std::tuple("quick_gelu", true, 1.0, 7.0));
  EXPECT_EQ(std::tuple(m.softmax_type, m.sliding_window, m.window_attn_skip_freq), std::tuple("learnable", 128, 2));
  EXPECT_EQ(std::tuple(m.add_bias_linear, m.ffn_hidden_size), std::tuple(true, 4 * 768)) << "only --swiglu has less";
  const std::string dense = kSmallDense;
  EXPECT_EQ(experts_recipe(dense).model.softmax_type, "vanilla");
  EXPECT_EQ(experts_recipe(dense + "--softmax-type off-by-one").model.softmax_type, "off-by-one");
  EXPECT_THAT(refusal_of_experts(dense + "--quick-geglu --swiglu"), HasSubstr("exclude one another"));
  EXPECT_THAT(refusal_of_experts(dense + "--swiglu --activation-func-clamp-value 7"),
              HasSubstr("other than --quick-geglu"));
  EXPECT_THAT(refusal_of_experts(dense + "--swiglu --glu-linear-offset 1"), HasSubstr("other than --quick-geglu"));
}

}  // namespace
}  // namespace megatron::config
