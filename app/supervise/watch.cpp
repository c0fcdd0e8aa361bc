#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "app/jobs.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/config/options.h"
#include "megatron/supervise/screen/dashboard.h"

// Runs in the terminal while they train.
namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron watch RUN… [--once] [--every SECONDS]\n\n"
    "Shows where runs stand: loss, validation, learning rate, tokens/s, time left, memory, curves and the last "
    "events,\nfrom the files in their folders (train.out). A folder that is not there yet is waited for. Drawn again "
    "when they change; Ctrl-C ends it. Without a terminal, once.";

constexpr std::size_t kMaxRuns = 8;

struct WatchOptions {
  bool once = false;
  double every_s = 1;
  int width = 0, height = 0;

  void visit(auto& v) {
    v("once", once, "Print once and end.");
    v("every", every_s, "Seconds between looks at the files.");
    v("width", width, "Columns; 0: the terminal's, or 100.");
    v("height", height, "Lines; 0: the terminal's, or 30.");
  }
};

struct ScreenSize {
  int width = 100, height = 30;

  bool operator==(const ScreenSize&) const = default;
};

ScreenSize screen_size(const WatchOptions& options) {
  ScreenSize size;
  winsize terminal{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal) == 0 && terminal.ws_col > 0 && terminal.ws_row > 1)
    size = {terminal.ws_col, terminal.ws_row - 1};
  if (options.width > 0) size.width = options.width;
  if (options.height > 0) size.height = options.height;
  return size;
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// While it lives the terminal shows another screen, without a cursor.
class OtherScreen {
 public:
  OtherScreen() { print_text("\x1b[?1049h\x1b[?25l"); }
  ~OtherScreen() { print_text("\x1b[?25h\x1b[?1049l"); }
  OtherScreen(const OtherScreen&) = delete;
  OtherScreen& operator=(const OtherScreen&) = delete;

  /// Each line is written over the one before, so that nothing flickers.
  static void draw(const std::string& text) {
    std::string screen = "\x1b[H";
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      screen += text.substr(begin, end - begin) + "\x1b[K\r\n";
      begin = end + 1;
    }
    print_text(screen + "\x1b[J");
    std::fflush(stdout);
  }
};

/// Until a signal ends it.
void watch_on(std::vector<supervise::WatchedRun>& runs, const WatchOptions& options) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const OtherScreen screen;
  const timespec pause{static_cast<std::time_t>(options.every_s),
                       static_cast<long>(std::fmod(options.every_s, 1) * 1e9)};
  std::string drawn;
  ScreenSize drawn_on{0, 0};
  do {
    for (supervise::WatchedRun& run : runs) run.update();
    const ScreenSize size = screen_size(options);
    std::string text = supervise::dashboard(runs, size.width, size.height, unix_seconds());
    if (text == drawn && size == drawn_on) continue;  // time alone changes what a run that died shows
    OtherScreen::draw(text);
    drawn = std::move(text);
    drawn_on = size;
  } while (sigtimedwait(&ends, nullptr, &pause) < 0);
}

/// A run that has not begun is waited for, where somebody looks on.
void require_run(const std::string& word, bool stays) {
  if (std::filesystem::is_directory(word)) return;
  if (std::filesystem::exists(word))
    throw ConfigError(
        rule_got_fix("watch takes folders of runs (train.out).", word + ", a file",
                     concat("megatron watch ", std::filesystem::path(word).parent_path().empty()
                                                   ? "."
                                                   : std::filesystem::path(word).parent_path().string())));
  if (stays) return;
  throw ConfigError(rule_got_fix("Without a terminal, and with --once, the folder of a run must be there.",
                                 word + ", which is not",
                                 concat("megatron watch ", word, " in a terminal waits for it")));
}

}  // namespace

int watch(const Args& args) {
  WatchOptions options;
  const Args words = config::parse_command_line(options, args, kUsage);
  if (words.empty() || words.size() > kMaxRuns)
    throw ConfigError(rule_got_fix(concat("watch takes 1 to ", kMaxRuns, " runs."), concat(words.size()),
                                   "megatron watch runs/a runs/b"));
  if (!(options.every_s >= 0.05 && options.every_s <= 3600))
    throw ConfigError(rule_got_fix("--every must be from 0.05 to 3600.", concat(options.every_s), "--every 1"));
  for (const auto& [name, value] : {std::pair{"--width", options.width}, std::pair{"--height", options.height}})
    if (value < 0 || value > 1000 || (value > 0 && value < 4))
      throw ConfigError(
          rule_got_fix(concat(name, " must be 0, or from 4 to 1000."), concat(value), concat(name, " 0")));
  const bool stays = !options.once && is_terminal(stdout);
  std::vector<supervise::WatchedRun> runs;
  for (const std::string& word : words) {
    require_run(word, stays);
    runs.emplace_back(word, word);
  }
  if (stays) {
    watch_on(runs, options);
    return kDone;
  }
  const ScreenSize size = screen_size(options);
  for (supervise::WatchedRun& run : runs) run.update();
  print_text(supervise::dashboard(runs, size.width, size.height, unix_seconds()));
  return kDone;
}

}  // namespace megatron::app
