#include "megatron/serve/embedding_response.h"

#include <stdexcept>
#include <utility>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/api/responses.h"
#include "megatron/serve/error_response.h"

namespace megatron::serve {
namespace {

constexpr const char* kEmbeddingPath = "/v1/embeddings";

}  // namespace

class EmbeddingResponse::Text : public TextListener {
 public:
  Text(std::shared_ptr<EmbeddingResponse> response, std::size_t index)
      : response_(std::move(response)), index_(index) {}

  void on_embedding(const std::vector<float>& embedding) override { response_->heard(index_, embedding); }
  bool on_token(const ScoredToken& /*token*/) override { throw std::logic_error("an embedding has no tokens"); }
  void on_end(Finish /*finish*/) override { throw std::logic_error("an embedding ends with its vector"); }
  void on_error(int status, const std::string& message) override { response_->failed(status, message); }
  bool gone() const override { return response_->failed_ || response_->reply_->gone(); }

 private:
  std::shared_ptr<EmbeddingResponse> response_;
  std::size_t index_;
};

std::shared_ptr<TextListener> EmbeddingResponse::add_text(std::int64_t tokens) {
  tokens_ += tokens;
  embeddings_.emplace_back();
  return std::make_shared<Text>(shared_from_this(), open_++);
}

void EmbeddingResponse::heard(std::size_t index, const std::vector<float>& embedding) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  embeddings_[index] = embedding;
  if (--open_ > 0) return;
  metrics_.add("megatron_requests_total", 1, {{"path", kEmbeddingPath}, {"status", "200"}});
  reply_->send({.body = embeddings_json(model_, embeddings_, base64_, tokens_)});
}

void EmbeddingResponse::failed(int status, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (failed_.exchange(true)) return;
  metrics_.add("megatron_requests_total", 1, {{"path", kEmbeddingPath}, {"status", std::to_string(status)}});
  reply_->send(error_response(text_error(status, message)));
}

}  // namespace megatron::serve
