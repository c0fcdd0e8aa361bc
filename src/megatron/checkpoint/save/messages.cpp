#include "megatron/checkpoint/save/messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>

namespace megatron::checkpoint {

void Messages::send(const std::string& text, int destination) const {
  at::Tensor length = at::empty({1}, at::kLong), bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  length.fill_(static_cast<std::int64_t>(text.size()));
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  world_.send(length.to(device_), destination);
  if (!text.empty()) world_.send(bytes.to(device_), destination);
}

std::string Messages::recv(int source) const {
  const at::Tensor length = at::empty({1}, at::TensorOptions(at::kLong).device(device_));
  world_.recv(length, source);
  std::string text(static_cast<std::size_t>(length.item<std::int64_t>()), '\0');
  if (text.empty()) return text;
  const at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(text.size())}, at::TensorOptions(at::kByte).device(device_));
  world_.recv(bytes, source);
  std::memcpy(text.data(), bytes.cpu().data_ptr(), text.size());
  return text;
}

std::vector<std::string> Messages::gather(const std::string& text) const {
  if (world_.rank() != 0) {
    send(text, 0);
    return {};
  }
  std::vector<std::string> texts = {text};
  for (int rank = 1; rank < world_.size(); ++rank) texts.push_back(recv(rank));
  return texts;
}

std::string Messages::scatter(const std::vector<std::string>& texts) const {
  if (world_.rank() != 0) return recv(0);
  for (int rank = 1; rank < world_.size(); ++rank) send(texts[static_cast<std::size_t>(rank)], rank);
  return texts[0];
}

}  // namespace megatron::checkpoint
