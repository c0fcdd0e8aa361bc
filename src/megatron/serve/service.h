#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megatron/serve/api/request.h"
#include "megatron/serve/api/responses.h"
#include "megatron/serve/grammar/token_trie.h"
#include "megatron/serve/http/server.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"
#include "megatron/serve/tools/tool_syntax.h"
#include "megatron/text/chat_template.h"
#include "megatron/text/tokenizer.h"

namespace megatron::serve {

/// A picture of the run that a model comes from.
struct Picture {
  std::string name;                         ///< of its address, /run/NAME.svg
  std::function<std::string()> draw;        ///< an SVG file; throws ApiError where there is nothing to draw
  std::function<bool()> can_be_drawn = {};  ///< empty: it always can, or may soon
};

/// What is served, and to whom.
struct ServiceOptions {
  std::string model = {};                  ///< its name
  std::vector<std::string> adapters = {};  ///< names of those beside it; number i + 1 of TextTask::adapter at i
  std::int64_t context = 0;                ///< tokens of prompt and answer together
  std::int64_t max_tokens = 0;             ///< of one answer; 0: what the context leaves
  std::int64_t vocab = 0;                  ///< ids that the model knows
  std::vector<std::int64_t> ends = {};     ///< tokens that end a text
  std::vector<std::string> tokens = {};    ///< bearer tokens; empty: everybody may ask
  double request_timeout_s = 600;
  std::int64_t created = 0;  ///< seconds since 1970
  bool embeddings = false;   ///< the model makes vectors of texts, and writes none
  std::string prompt = {};   ///< what precedes each text of which a vector is made
  bool lower_case = false;   ///< such a text, with what precedes it, is put into lower case
  RequestLimits limits = {};
  std::vector<Picture> pictures = {};  ///< in the order in which they are shown, made when they are asked for
};

/// Answers requests: what can be said at once it says, texts it puts into the queue.
class Service {
 public:
  /// `chat`: null for a model without a template. Declares `metrics`. All references must outlive this and every reply.
  Service(ServiceOptions options, const text::Tokenizer& tokenizer, std::optional<text::ChatTemplate> chat,
          TaskQueue& queue, Metrics& metrics);

  /// As a Handler. Throws nothing.
  void handle(const HttpRequest& request, const std::shared_ptr<Reply>& reply);

 private:
  void route(const HttpRequest& request, const std::shared_ptr<Reply>& reply, const std::string& client);
  /// The picture at /run/NAME.svg; null where there is none.
  const Picture* picture_at(const std::string& path) const;
  std::string authorized_client(const HttpRequest& request) const;
  void answer(Request request, const std::shared_ptr<Reply>& reply, const std::string& client);
  void embed(const EmbeddingRequest& request, const std::shared_ptr<Reply>& reply, const std::string& client);
  /// What is read of a text of which a vector is asked for.
  std::string text_of_vector(const std::string& text) const;
  /// `special`: with what the tokenizer's template sets before a text, of embeddings around it.
  PromptTokens tokens_of(const Prompt& prompt, const std::string& name, bool special) const;
  std::int64_t new_tokens(const Request& request, std::int64_t prompt_tokens) const;
  /// The adapter whose name is `asked` (TextTask::adapter): 0 for the model's own and "". Throws ApiError 404 for
  /// others.
  std::int64_t adapter_of(const std::string& asked) const;
  ServedModel served(std::int64_t adapter) const;
  /// The prompt of a chat. Throws ApiError 400 where its template has no way to write tools or calls.
  std::string chat_prompt(const Request& request) const;
  /// What makes a mask for each text of a request that is kept within a schema or calls; null where it is not.
  std::function<std::shared_ptr<TokenMask>()> masks_of(const Request& request);
  /// Whether answers to the request, whose prompts are made, may begin with thoughts.
  Thinking thinking_of(const Request& request) const;

  ServiceOptions options_;
  const text::Tokenizer& tokenizer_;
  std::optional<text::ChatTemplate> chat_;
  const ToolSyntax* syntax_ = nullptr;  ///< of calls; null where the template writes none that is known
  TaskQueue& queue_;
  Metrics& metrics_;
  std::once_flag trie_once_;
  std::shared_ptr<const TokenTrie> trie_;  ///< made when a schema first asks for it
  std::atomic<std::uint64_t> requests_{0};
  std::uint64_t start_;  ///< makes ids and seeds of this run differ from those of others
};

}  // namespace megatron::serve
