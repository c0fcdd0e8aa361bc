#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/serve/http/server.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"

namespace megatron::serve {

/// The response to one request for embeddings: its texts are listeners, and what they hear is sent once all have heard.
class EmbeddingResponse : public std::enable_shared_from_this<EmbeddingResponse> {
 public:
  EmbeddingResponse(std::string model, bool base64, std::shared_ptr<Reply> reply, Metrics& metrics)
      : model_(std::move(model)), base64_(base64), reply_(std::move(reply)), metrics_(metrics) {}

  /// The listener of the next text, of so many tokens.
  std::shared_ptr<TextListener> add_text(std::int64_t tokens);

 private:
  class Text;

  void heard(std::size_t index, const std::vector<float>& embedding);
  void failed(int status, const std::string& message);

  std::string model_;
  bool base64_;
  std::shared_ptr<Reply> reply_;
  Metrics& metrics_;
  std::mutex mutex_;  ///< texts that wait may be ended by another thread than that which computes
  std::vector<std::vector<float>> embeddings_;
  std::size_t open_ = 0;
  std::int64_t tokens_ = 0;
  std::atomic<bool> failed_{false};
};

}  // namespace megatron::serve
