#pragma once
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/config/run_config.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tensors.h"

namespace megatron::interchange {

/// A folder of the reference models; empty where they are not there.
inline std::filesystem::path golden_model(const std::string& name) {
  const auto folder = std::filesystem::path(unpacked_folder()) / "golden/models" / name;
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

/// A whole tensor of a source, in the dtype that `type` says.
inline at::Tensor read_whole(const checkpoint::WeightSource& source, const std::string& name,
                             at::ScalarType type = at::kFloat) {
  const auto& shape = *source.shape(name);
  at::Tensor into = at::empty(shape, type);
  source.read(name, {std::vector<std::int64_t>(shape.size(), 0), shape}, into);
  return into;
}

inline testing::Tensors read_all(const checkpoint::WeightSource& source) {
  testing::Tensors tensors;
  for (const std::string& name : source.tensors()) tensors[name] = read_whole(source, name);
  return tensors;
}

inline void expect_same(const testing::Tensors& got, const testing::Tensors& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

/// A safetensors file of float32.
inline void write_tensors(const std::filesystem::path& path, const testing::Tensors& tensors) {
  std::vector<checkpoint::SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({.name = name, .dtype = "F32", .shape = tensor.sizes().vec()});
  std::string text;
  checkpoint::make_safetensors(entries, {}, text);
  for (const auto& [name, tensor] : tensors)
    text.append(static_cast<const char*>(tensor.contiguous().const_data_ptr()), tensor.nbytes());
  write_file(path, text);
}

/// The message of the ConfigError that `work` throws; "" where it throws none.
inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Expects that `work` is refused with a message that holds all of `words`.
inline void expect_refused(const std::function<void()>& work, const std::vector<std::string>& words) {
  const std::string message = refusal(work);
  EXPECT_NE(message, "") << "not refused";
  for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
}

/// The recipe of a GPT of 2 layers that trains 7 steps.
inline config::RunConfig small_run() {
  config::RunConfig run;
  run.model.vocab_size = run.model.max_position_embeddings = run.data.seq_length = 32;
  run.model.num_layers = 2;
  run.model.hidden_size = 8;
  run.model.num_attention_heads = 2;
  run.model.ffn_hidden_size = 16;
  run.model.position_embedding_type = "rope";
  run.train.global_batch_size = 8;
  run.train.train_iters = 7;
  run.schedule.lr = 1e-3;
  return run;
}

}  // namespace megatron::interchange
