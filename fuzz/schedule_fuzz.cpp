// Any bytes are either a program that writes and reads back to itself, and is refused or can be lowered and executed,
// or a ConfigError; never a crash, a hang or a rank that waits for ever.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "megatron/base/error.h"
#include "megatron/schedule/passes.h"
#include "megatron/schedule/simulate.h"
#include "megatron/schedule/text.h"
#include "megatron/schedule/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  using namespace megatron::schedule;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const Program program = parse_program(text, "input");
    if (parse_program(to_text(program), "again") != program) std::abort();
    validate(program);
    simulate(program);  // throws std::logic_error, and so ends the program, where validate() was wrong
    if (has_communication(program)) return 0;
    for (const Communication how : {Communication::Unbatched, Communication::Batched, Communication::Overlapped})
      validate(insert_communication(program, how));
  } catch (const ConfigError&) {
  }
  return 0;
}
