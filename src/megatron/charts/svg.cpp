#include "megatron/charts/svg.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/json.h"

namespace megatron::charts::svg {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

/// Upper bound of a character's width in ems, by its first byte.
double character_width(char first) {
  const std::string_view narrow = " !'()-,./:;[]\\`fijlrtI|", wide = "#%&+<=>@MQW^_mw~";
  if (static_cast<unsigned char>(first) >= 0x80 || wide.find(first) != std::string_view::npos) return 1;
  if (narrow.find(first) != std::string_view::npos) return 0.42;
  return first >= 'A' && first <= 'Z' ? 0.79 : 0.64;
}

}  // namespace

std::string px(double value) {
  std::string result = fmt::format("{:.2f}", value);
  result.erase(result.find_last_not_of('0') + 1);
  if (result.back() == '.') result.pop_back();
  return result == "-0" ? "0" : result;
}

std::string escaped(const std::string& text) {
  using nlohmann::json;
  const std::string valid = parse_json(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  std::string out;
  for (const char c : valid) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return out;
}

double text_width(const std::string& text, double size, bool bold) {
  constexpr double kBold = 1.18;  // what bold letters take more, at most
  double width = 0;
  for (const char c : text)
    if (begins_character(c)) width += character_width(c);
  return width * size * (bold ? kBold : 1);
}

std::string shortened(const std::string& text, double width, double size, bool bold) {
  if (text_width(text, size, bold) <= width) return text;
  std::size_t end = text.size();
  do {
    do --end;
    while (end > 0 && !begins_character(text[end]));
  } while (end > 0 && text_width(text.substr(0, end) + "…", size, bold) > width);
  return text.substr(0, end) + "…";
}

std::string hex(const Rgb& rgb) { return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]); }

std::string text_at(double x, double y, const std::string& classes, const std::string& text) {
  return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\"" + (classes.empty() ? "" : " class=\"" + classes + "\"") + ">" +
         escaped(text) + "</text>\n";
}

std::string box(double x, double y, double width, double height, const std::string& classes) {
  return "<rect class=\"" + classes + "\" x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) +
         "\" height=\"" + px(height) + "\"";
}

std::string document(double width, double height, const std::string& definitions, const std::string& title,
                     double title_x, const std::string& body) {
  constexpr double kTitleSize = 16, kMargin = 10, kWidestTitle = 1200;
  width = std::max(width, title_x + std::min(text_width(title, kTitleSize, true), kWidestTitle) + kMargin);
  const std::string shown = shortened(title, width - title_x - kMargin, kTitleSize, true);
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", px(width), "\" height=\"", px(height),
                "\" viewBox=\"0 0 ", px(width), " ", px(height), "\">\n", definitions, "<rect class=\"d\" width=\"",
                px(width), "\" height=\"", px(height), "\"/>\n", text_at(title_x, 24, "h", shown), body, "</svg>\n");
}

}  // namespace megatron::charts::svg
