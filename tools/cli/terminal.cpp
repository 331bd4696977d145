#include "tools/cli/terminal.h"

#include <sys/ioctl.h>

#include <charconv>
#include <cstring>

namespace snug {
namespace {

constexpr int kLeastColumns = 20;  // of a line, and of the last cell of a row

// Characters of UTF-8.
size_t width_of(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

// The byte behind so many characters.
size_t bytes_of(std::string_view text, size_t characters) {
  size_t at = 0;
  for (; at < text.size(); ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80 && characters-- == 0) break;
  return at;
}

size_t indent_of(std::string_view line, size_t columns) {
  const size_t margin = line.find_first_not_of(' ');
  for (size_t at = line.rfind("  "); at != std::string_view::npos && at > margin;
       at = line.rfind("  ", at - 1)) {
    const size_t cell = width_of(line.substr(0, at + 2));
    if (cell + kLeastColumns <= columns) return cell;
  }
  return margin + 2 + kLeastColumns <= columns ? margin + 2 : 0;
}

void fit_line(std::string& out, std::string_view line, size_t columns) {
  if (width_of(line) <= columns || line.find_first_not_of(' ') == std::string_view::npos) {
    out += line;
    return;
  }
  if (line.find_first_not_of(" -") == std::string_view::npos) {  // a rule
    out += line.substr(0, columns);
    return;
  }
  const size_t indent = indent_of(line, columns);
  std::string rest(line);
  while (width_of(rest) > columns) {
    const size_t begin = rest.find_first_not_of(' ');
    // The last space that leaves the line within the width, else the first one there is.
    size_t cut = rest.rfind(' ', bytes_of(rest, columns));
    if (cut == std::string::npos || cut <= begin) cut = rest.find(' ', begin);
    const size_t next = cut == std::string::npos ? cut : rest.find_first_not_of(' ', cut);
    if (next == std::string::npos) break;
    const size_t end = rest.find_last_not_of(' ', cut);
    out.append(rest, 0, end + 1);
    out += '\n';
    rest = std::string(indent, ' ') + rest.substr(next);
  }
  out += rest;
}

}  // namespace

int terminal_columns() {
  if (const char* const said = std::getenv("COLUMNS"); said != nullptr) {
    int columns = 0;
    const char* const end = said + std::strlen(said);
    if (const auto [at, error] = std::from_chars(said, end, columns);
        error == std::errc() && at == end && columns >= kLeastColumns)
      return columns;
  }
  winsize size{};
  if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col >= kLeastColumns)
    return size.ws_col;
  return 0;
}

std::string fit_columns(std::string_view text, int columns) {
  if (columns <= 0) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    fit_line(out, text.substr(0, end), static_cast<size_t>(columns));
    if (end == std::string_view::npos) break;
    out += '\n';
    text.remove_prefix(end + 1);
  }
  return out;
}

std::string fit_terminal(std::string_view text) {
  return fit_columns(text, terminal_columns());
}

}  // namespace snug
