// server/dialect/whole_calls.h - tool calls put together from their pieces, for dialects that send each
// call whole, with its arguments as an object.
//
//   WholeCalls calls;                                        // of one choice
//   for (const auto& call : calls.add(piece.tools, piece.finish.has_value()))
//     if (const auto arguments = arguments_of(call)) send(call.name, *arguments);
#pragma once

#include <optional>
#include <vector>

#include "server/dialect/answer_writer.h"

namespace quire {

class WholeCalls {
 public:
  // The calls that are whole now. A call ends where the next one begins, or with the answer.
  std::vector<WholeAnswer::Call> add(const std::vector<ToolPiece>& pieces, bool last) {
    std::vector<WholeAnswer::Call> whole;
    for (const ToolPiece& p : pieces) {
      if (p.kind == ToolPiece::Kind::call) {
        if (open_) whole.push_back(std::move(*open_));
        open_ = WholeAnswer::Call{p.text, ""};
      } else if (p.kind == ToolPiece::Kind::arguments && open_) {
        open_->arguments += p.text;
      }
    }
    if (last && open_) whole.push_back(*std::exchange(open_, std::nullopt));
    return whole;
  }

 private:
  std::optional<WholeAnswer::Call> open_;
};

// None: they are no JSON object, because the answer was cut or the model wrote something else.
inline std::optional<Json> arguments_of(const WholeAnswer::Call& call) {
  auto parsed = parse_json(call.arguments, kRequestJson);
  if (!parsed.ok() || !parsed.value().is_object()) return std::nullopt;
  return std::move(parsed.value());
}

}  // namespace quire
