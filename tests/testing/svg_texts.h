#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Where the texts of a picture are, by the widths of DejaVu Sans, which is wide among sans-serif fonts.
namespace megatron::testing {

struct SvgText {
  std::string text;
  double left, top, right, bottom;
};

/// Advance widths of the characters from ' ' to '~', thousandths of the font's size, as DejaVu's files have them.
inline double dejavu_width(unsigned char c, bool bold) {
  static constexpr std::array<int, 95> kPlain = {
      318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361,  318, 337, 636, 636, 636,
      636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
      575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635,  611, 732, 684, 989, 685,
      611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352,  635, 634, 278, 278, 579,
      278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592,  525, 636, 337, 636, 838};
  static constexpr std::array<int, 95> kBold = {
      348, 456,  521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415,  380, 365, 696, 696,  696,
      696, 696,  696, 696, 696, 696,  696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830,  683,
      683, 821,  837, 372, 372, 775,  637, 995, 837, 850, 733, 850, 770, 720,  682, 812, 774, 1103, 771,
      724, 725,  457, 365, 457, 838,  500, 500, 675, 716, 593, 716, 678, 435,  716, 712, 343, 343,  665,
      343, 1042, 712, 687, 716, 716,  493, 595, 478, 712, 652, 924, 645, 652,  582, 712, 365, 712,  838};
  if ((c & 0xc0) == 0x80) return 0;  // follows the first byte of a character, which counts as wide
  if (c < ' ' || c > '~') return 1;
  return (bold ? kBold : kPlain)[static_cast<std::size_t>(c - ' ')] / 1000.0;
}

/// The declarations of each class in <style>, "text" being those of all texts.
inline std::map<std::string, std::string> svg_styles(const std::string& svg) {
  static const std::regex rule(R"re((?:^|[}>\n])\s*\.?(\w+)\{([^}]*)\})re");
  std::map<std::string, std::string> styles;
  const std::size_t begin = svg.find("<style>"), end = svg.find("</style>");
  if (begin == std::string::npos) return styles;
  std::string text = svg.substr(begin + 6, end - begin - 6);
  // Rules follow one another: each match must leave the closing brace for the next.
  std::string spaced;
  for (const char c : text) spaced += c == '}' ? std::string("}\n\n") : std::string(1, c);
  for (std::sregex_iterator i(spaced.begin(), spaced.end(), rule), last; i != last; ++i) styles[(*i)[1]] += (*i)[2];
  return styles;
}

/// A <text> element, taken apart.
struct SvgTextElement {
  double x, y;
  std::string classes, words;
};

/// Throws where the element is written otherwise than `<text x="1" y="2.5" class="a b">words</text>`, the class being
/// optional.
inline SvgTextElement svg_text_element(std::string_view element) {
  std::string_view rest = element;
  const auto skip = [&](std::string_view literal) {
    const bool is_next = rest.starts_with(literal);
    if (is_next) rest.remove_prefix(literal.size());
    return is_next;
  };
  const auto until = [&](char end) {
    const std::string_view part = rest.substr(0, rest.find(end));
    rest.remove_prefix(part.size());
    return std::string(part);
  };
  const auto is_number = [](const std::string& digits) {
    return !digits.empty() && digits.find_first_not_of("-.0123456789") == std::string::npos;
  };
  bool right = skip("<text x=\"");
  const std::string x = until('"');
  right = right && skip("\" y=\"");
  const std::string y = until('"');
  right = right && skip("\"");
  std::string classes;
  if (skip(" class=\"")) {
    classes = until('"');
    right = right && skip("\"");
  }
  right = right && skip(">");
  const std::string words = until('<');
  if (!right || rest != "</text>" || !is_number(x) || !is_number(y))
    throw std::logic_error("no text element: " + std::string(element));
  return {std::stod(x), std::stod(y), classes, words};
}

/// How texts of the same classes are written.
struct SvgTextStyle {
  double pixels = 0;
  bool bold = false, middle = false, end = false;
};

inline SvgTextStyle svg_text_style(const std::string& names, const std::map<std::string, std::string>& styles) {
  static const std::regex size(R"re((\d+)px)re");
  const auto declared = [&](const std::string& name) {
    const auto found = styles.find(name);
    return found == styles.end() ? std::string() : found->second;
  };
  std::string declarations = declared("text");
  std::istringstream classes(names);
  for (std::string name; classes >> name;) declarations += ";" + declared(name);
  const auto has = [&](const char* words) { return declarations.find(words) != std::string::npos; };
  SvgTextStyle style{
      .bold = has("font-weight:bold"), .middle = has("text-anchor:middle"), .end = has("text-anchor:end")};
  for (std::sregex_iterator s(declarations.begin(), declarations.end(), size), last; s != last; ++s)
    style.pixels = std::stod((*s)[1]);  // the last rule holds
  return style;
}

inline std::vector<SvgText> svg_texts(const std::string& svg) {
  const auto declarations = svg_styles(svg);
  std::map<std::string, SvgTextStyle> styles;  // of classes that were met
  std::vector<SvgText> all;
  for (auto at = svg.find("<text "); at != std::string::npos; at = svg.find("<text ", at + 1)) {
    SvgTextElement element = svg_text_element(std::string_view(svg).substr(at, svg.find("</text>", at) + 7 - at));
    const auto [known, is_new] = styles.try_emplace(element.classes);
    if (is_new) known->second = svg_text_style(element.classes, declarations);
    const SvgTextStyle& style = known->second;
    std::string& words = element.words;
    for (const auto& [entity, sign] : {std::pair{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
      for (auto found = words.find(entity); found != std::string::npos; found = words.find(entity, found + 1))
        words.replace(found, std::string(entity).size(), sign);
    double width = 0;
    for (const char c : words) width += style.pixels * dejavu_width(static_cast<unsigned char>(c), style.bold);
    const double left = style.middle ? element.x - width / 2 : style.end ? element.x - width : element.x;
    all.push_back({words, left, element.y - 0.76 * style.pixels, left + width, element.y + 0.24 * style.pixels});
  }
  return all;
}

/// What is wrong with the texts of a picture: those that overlap by more than half a pixel, and those that leave it.
/// Pictures without text have a fault too.
inline std::string text_faults(const std::string& svg) {
  static const std::regex size(R"re(viewBox="0 0 ([\d.]+) ([\d.]+)")re");
  std::smatch box;
  if (!std::regex_search(svg, box, size)) return "no viewBox";
  const double width = std::stod(box[1]), height = std::stod(box[2]);
  std::vector<SvgText> texts = svg_texts(svg);
  if (texts.empty()) return "no texts";
  std::sort(texts.begin(), texts.end(), [](const SvgText& a, const SvgText& b) { return a.top < b.top; });
  std::ostringstream faults;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const SvgText& a = texts[i];
    if (a.left < 0 || a.top < 0 || a.right > width || a.bottom > height)
      faults << "cut: '" << a.text << "' from " << a.left << ", " << a.top << " to " << a.right << ", " << a.bottom
             << " of " << width << " x " << height << "\n";
    for (std::size_t k = i + 1; k < texts.size() && texts[k].top < a.bottom - 0.5; ++k)
      if (std::min(a.right, texts[k].right) - std::max(a.left, texts[k].left) > 0.5)
        faults << "overlap: '" << a.text << "' and '" << texts[k].text << "' at " << texts[k].left << ", "
               << texts[k].top << "\n";
  }
  return faults.str();
}

}  // namespace megatron::testing
