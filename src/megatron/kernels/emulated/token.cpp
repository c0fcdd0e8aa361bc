#include "megatron/kernels/token/token.h"

#include <utility>

#include "megatron/kernels/emulated/driver.h"
#include "megatron/kernels/phases/operators/token.h"

namespace megatron::kernels {
namespace {

class CalledAgain final : public Replay {
 public:
  explicit CalledAgain(std::function<void()> launches) : launches_(std::move(launches)) {}
  void run() override { launches_(); }

 private:
  std::function<void()> launches_;
};

std::unique_ptr<Replay> called_again(std::function<void()> launches) {
  return std::make_unique<CalledAgain>(std::move(launches));
}

}  // namespace

const TokenKernels& emulated_token_kernels() {
  using Token = phases::TokenOperators<emulated::HostDriver>;
  static constexpr TokenKernels kTable{.embed = Token::embed,
                                       .multiply = Token::multiply,
                                       .normalize = Token::normalize,
                                       .attend = Token::attend,
                                       .choose = Token::choose,
                                       .draw = Token::draw,
                                       .shortlist = Token::shortlist,
                                       .capture = called_again};
  return kTable;
}

}  // namespace megatron::kernels
