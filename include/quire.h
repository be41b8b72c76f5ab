/* quire.h - the C interface of Quire: open a model, feed tokens, get the next one.
 *
 *   quire_model* model = quire_open("model.gguf", NULL);
 *   if (!model) { fprintf(stderr, "%s\n", quire_last_error()); return 1; }
 *   quire_session* s = quire_session_new(model, 4096);
 *   uint32_t ids[256];
 *   int64_t n = quire_tokenize(model, "Once upon a time", 16, 0, ids, 256);
 *   quire_feed(s, ids, n);                   // remembered, not yet computed
 *   for (int i = 0; i < 32; ++i) {
 *     uint32_t token;
 *     if (quire_step(&s, 1) != QUIRE_OK || quire_sample(s, NULL, &token) != QUIRE_OK) break;
 *     quire_feed(s, &token, 1);
 *   }
 *
 * A prompt that begins like an earlier one is served from the KV cache; the answer has the same bits
 * with and without the cache. Use a model from one thread at a time. Functions that fail return a
 * code below zero, NULL, or a count of 0, and quire_last_error() says why (per thread, valid until
 * the next call). A NULL argument that must not be NULL is such a failure.
 */
#ifndef QUIRE_H
#define QUIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_API __attribute__((visibility("default")))

typedef struct quire_model quire_model;
typedef struct quire_session quire_session;

enum quire_code {
  QUIRE_OK = 0,
  QUIRE_INVALID = -1,     /* arguments make no sense */
  QUIRE_NOT_FOUND = -2,   /* no such file */
  QUIRE_EXHAUSTED = -3,   /* no room in the cache; free sessions or open with more memory */
  QUIRE_CORRUPT = -4,     /* a file is not what it claims to be */
  QUIRE_UNSUPPORTED = -5, /* well-formed, but Quire does not do it */
  QUIRE_FAILED = -6
};

/* Zero means the default. Start from quire_options_default(), so that new fields are set, too. */
typedef struct quire_options {
  uint32_t threads;           /* one per core */
  uint32_t context;           /* the model's own */
  uint32_t block_size;        /* tokens per cache block: 16, 32 or 64 */
  uint32_t activations_int16; /* 1: more precise, slower prefill */
  uint64_t kv_cache_bytes;    /* 80 % of what is free */
  const char* kv_format;      /* "f16" ("f32" for F32 models) */
  const char* kv_budget;      /* everything stays; "snapkv:20%", see `quire kv methods` */
  const char* kv_select;      /* everything is read; "quest:512": what answers read;
                                 "xattention:0.9", "vertical-slash:256+512": what prompts read */
} quire_options;

/* Temperature 0 is greedy. Equal seeds draw equal tokens, whatever other sessions compute. */
typedef struct quire_sampling {
  float temperature, top_p, min_p, typical_p;
  uint32_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
} quire_sampling;

QUIRE_API const char* quire_version(void);
QUIRE_API const char* quire_last_error(void);
QUIRE_API quire_options quire_options_default(void);
QUIRE_API quire_sampling quire_sampling_default(void);

/* options may be NULL. */
QUIRE_API quire_model* quire_open(const char* path, const quire_options* options);
/* Sessions that are still open keep working; the memory goes with the last of them. */
QUIRE_API void quire_close(quire_model* model);
QUIRE_API uint32_t quire_vocabulary(const quire_model* model);
QUIRE_API uint32_t quire_context(const quire_model* model);

/* Writes at most `capacity` ids and returns how many there are, which may be more. With
 * parse_special, spellings of control tokens become those tokens: only for text that you wrote
 * yourself. */
QUIRE_API int64_t quire_tokenize(const quire_model* model, const char* text, size_t bytes,
                                 int parse_special, uint32_t* ids, size_t capacity);
/* The ids of a conversation as the model's chat template writes it, ready for the model's turn.
 * Contents are always text: spellings of control tokens in them stay what they are. Counts like
 * quire_tokenize. QUIRE_UNSUPPORTED where the model has no template. */
typedef struct quire_message {
  const char *role, *content; /* "system", "user", "assistant" */
} quire_message;
QUIRE_API int64_t quire_chat(const quire_model* model, const quire_message* messages, size_t count,
                             uint32_t* ids, size_t capacity);
/* The bytes a token stands for, perhaps part of a character. Returns their number, which may be
 * more than capacity. */
QUIRE_API int64_t quire_token_text(const quire_model* model, uint32_t id, char* text,
                                   size_t capacity);
QUIRE_API int quire_is_end(const quire_model* model, uint32_t id);

/* A sequence of at most `capacity` tokens. */
QUIRE_API quire_session* quire_session_new(quire_model* model, uint32_t capacity);
QUIRE_API void quire_session_free(quire_session* session);
/* Which tokens of its prompt this session keeps, in place of quire_options.kv_budget; NULL: all.
 * Call it before the session's first step. */
QUIRE_API int quire_budget(quire_session* session, const char* kv_budget);

/* Appends tokens. They are computed by the next quire_step. */
QUIRE_API int quire_feed(quire_session* session, const uint32_t* ids, size_t count);
/* Computes all tokens that were fed to these sessions, side by side, and leaves the next logits of
 * each. The sessions must belong to one model. */
QUIRE_API int quire_step(quire_session* const* sessions, size_t count);
/* The logits after the last token: quire_vocabulary() floats, valid until the next step. NULL
 * before the first step. */
QUIRE_API const float* quire_logits(const quire_session* session);
/* Draws the next token; sampling may be NULL for greedy. Does not feed it. */
QUIRE_API int quire_sample(quire_session* session, const quire_sampling* sampling, uint32_t* id);

/* Tokens fed so far. */
QUIRE_API uint32_t quire_length(const quire_session* session);
/* Tokens of the first step that came from the cache. */
QUIRE_API uint32_t quire_cached(const quire_session* session);
/* Bytes of the cache that the session holds now, shared blocks included. */
QUIRE_API uint64_t quire_kv_bytes(const quire_session* session);
/* A second session that shares everything so far; nothing is copied until the two differ. */
QUIRE_API quire_session* quire_fork(quire_session* session);
/* Forgets the tokens from `length` on. The last remaining token is computed again by the next step.
 */
QUIRE_API int quire_truncate(quire_session* session, uint32_t length);

#ifdef __cplusplus
}
#endif

#endif
