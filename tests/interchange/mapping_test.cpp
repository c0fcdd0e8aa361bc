#include "megatron/interchange/mapping.h"

#include <gtest/gtest.h>

#include <numeric>

namespace megatron::interchange {
namespace {

const plan::GptShape kGpt2 = {.num_layers = 2,
                              .hidden = 8,
                              .num_heads = 4,
                              .ffn_hidden = 12,
                              .vocab = 11,
                              .padded_vocab = 11,
                              .max_positions = 6};

plan::GptShape llama() {
  plan::GptShape shape = kGpt2;
  shape.num_groups = 2;
  shape.head_size = 3;
  shape.rms_norm = shape.gated = shape.attention.add_qkv_bias = true;
  shape.linear_bias = shape.learned_positions = shape.tied_output = false;
  return shape;
}

plan::GptShape t5(bool second) {
  plan::GptShape shape = llama();
  shape.num_groups = 0;
  shape.num_layers = 5;
  shape.attention.add_qkv_bias = false;
  shape.gated = second;
  shape.tied_output = !second;
  shape.architecture = plan::Architecture::T5;
  shape.encoder_layers = 2;
  shape.position_buckets = 8;
  shape.position_max_distance = 10;
  return shape;
}

/// A BERT with the head of a task.
plan::GptShape bert(plan::Head head) {
  plan::GptShape shape = kGpt2;
  shape.architecture = plan::Architecture::Bert;
  shape.token_types = 2;
  shape.tied_output = false;
  shape.task_head = head;
  shape.num_classes = head == plan::Head::Classes ? 3 : 0;
  return shape;
}

/// A GPT that tells classes apart.
plan::GptShape with_classes(plan::GptShape shape) {
  shape.tied_output = false;
  shape.task_head = plan::Head::Classes;
  shape.num_classes = 3;
  return shape;
}

Mapping table_of(const plan::GptShape& shape) {
  return bert_mapping(shape,
                      {.pooler = shape.task_head != plan::Head::Span, .token_head = false, .sentence_head = false});
}

std::vector<Mapping> all_tables() {
  std::vector<Mapping> tables = {gpt2_mapping(kGpt2), llama_mapping(llama()), bert_mapping(kGpt2, {}),
                                 t5_mapping(t5(false)), t5_mapping(t5(true))};
  for (const plan::Head head : {plan::Head::Classes, plan::Head::Options, plan::Head::Span})
    tables.push_back(table_of(bert(head)));
  return tables;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// How often each element of a target is written.
std::vector<int> coverage(const MappedTensor& tensor) {
  std::vector<int> counts(static_cast<std::size_t>(elements(tensor.shape)), 0);
  const std::int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  for (const Piece& piece : tensor.pieces)
    for (std::int64_t row = 0; row < piece.shape[0]; ++row)
      for (std::int64_t column = 0; column < (piece.shape.size() > 1 ? piece.shape[1] : 1); ++column)
        ++counts.at(
            static_cast<std::size_t>((piece.to[0] + row) * columns + (piece.to.size() > 1 ? piece.to[1] : 0) + column));
  return counts;
}

TEST(Mapping, HoldsEveryElementOnceInBothDirections) {
  for (const Mapping& table : all_tables())
    for (const Mapping& direction : {table, inverted(table)})
      for (const auto& [name, tensor] : direction)
        for (const int count : coverage(tensor)) ASSERT_EQ(count, 1) << name;
}

TEST(Mapping, TwiceInvertedIsItself) {
  for (const Mapping& table : all_tables()) {
    const Mapping again = inverted(inverted(table));
    ASSERT_EQ(again.size(), table.size());
    for (const auto& [name, tensor] : table) {
      EXPECT_EQ(again.at(name).shape, tensor.shape) << name;
      std::map<std::vector<std::int64_t>, Piece> pieces;  // by place: the order may differ
      for (const Piece& piece : again.at(name).pieces) pieces[piece.to] = piece;
      ASSERT_EQ(pieces.size(), tensor.pieces.size());
      for (const Piece& piece : tensor.pieces) {
        EXPECT_EQ(pieces.at(piece.to).source, piece.source);
        EXPECT_EQ(pieces.at(piece.to).from, piece.from);
        EXPECT_EQ(pieces.at(piece.to).shape, piece.shape);
      }
    }
  }
}

TEST(Mapping, NamesAndShapesAreThoseOfThePlan) {
  for (const auto& [shape, table] : {std::pair{kGpt2, gpt2_mapping(kGpt2)},
                                     {llama(), llama_mapping(llama())},
                                     {with_classes(kGpt2), gpt2_mapping(with_classes(kGpt2))},
                                     {with_classes(llama()), llama_mapping(with_classes(llama()))},
                                     {t5(false), t5_mapping(t5(false))},
                                     {t5(true), t5_mapping(t5(true))},
                                     {bert(plan::Head::Classes), table_of(bert(plan::Head::Classes))},
                                     {bert(plan::Head::Options), table_of(bert(plan::Head::Options))},
                                     {bert(plan::Head::Span), table_of(bert(plan::Head::Span))}}) {
    const auto specs = plan::gpt_parameters(shape, 1, 0);
    EXPECT_EQ(specs.size(), table.size());
    for (const auto& spec : specs) {
      ASSERT_TRUE(table.contains(spec.name)) << spec.name;
      EXPECT_EQ(table.at(spec.name).shape, spec.shape) << spec.name;
    }
  }
}

TEST(Mapping, RowsOfAGroupAreItsQueriesThenItsKeyThenItsValue) {
  const auto table = llama_mapping(llama());
  const auto& pieces = table.at("decoder.layers.1.self_attention.linear_qkv.weight").pieces;
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces[3].source, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(pieces[3].from, (std::vector<std::int64_t>{6, 0}));  // the second group's: heads 2 and 3, of 3 rows each
  EXPECT_EQ(pieces[3].to, (std::vector<std::int64_t>{12, 0}));
  EXPECT_EQ(pieces[4].source, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(pieces[4].from, (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(pieces[4].to, (std::vector<std::int64_t>{18, 0}));
}

}  // namespace
}  // namespace megatron::interchange
