// server/dialect/body_writer.h - answers that are never streamed: embeddings, rerank.
//
//   class EmbedWriter final : public BodyWriter { Json whole(...) override; };
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "net/http.h"
#include "server/dialect/answer_writer.h"
#include "server/generation_request.h"

namespace quire {

class BodyWriter : public AnswerWriter {
 public:
  BodyWriter(const GenerationRequest& asked, AnswerHead head, std::string_view id_prefix)
      : asked_(asked), head_(std::move(head)), id_(std::string(id_prefix) + head_.id) {}

  std::string id() const override { return id_; }
  HttpResponse stream_head() const override { return sse_head(""); }
  std::string piece(const AnswerPiece&, const std::vector<PromptInfo>&, const Usage&) override {
    return {};
  }
  std::string end(const Usage&, const Json&) override { return {}; }
  std::string failure(const ApiError&) override { return {}; }

 protected:
  const GenerationRequest asked_;
  const AnswerHead head_;
  const std::string id_;
};

}  // namespace quire
