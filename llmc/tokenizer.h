/*
tokenizer -- text to token ids and back, from the vocabulary file that data/prepare_text.py writes.
  file      line 1: "# train_gpt_nvfp4 vocabulary v1, size N, end_of_text E, kind byte|bpe";
            then N lines, the base64 of each id's bytes in order, or "-" for an id without bytes
            (a special token, or an id that stands for nothing)
  decode    exact for every kind
  encode    byte: exact. bpe: the text is split into words as GPT-2 does (contractions; a space and
            letters, digits or other marks; white space), then within each word the pair that makes
            the lowest id is merged, until none is left
Encoding is meant for prompts. It takes every byte from 0x80 on for a letter, so its ids are GPT-2's
on ASCII text; elsewhere, for a tokenizer.json that splits otherwise, and within a word of more than
TOKENIZER_WORD_BYTES, they can be other ids of the same text. It finds no special tokens in text.
Not for preparing data: data/prepare_text.py does that with the exact tokenizer.
  tests     test_tokenizer.c
*/
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOKENIZER_WORD_BYTES 1024   // longer words are encoded in parts

typedef struct Tokenizer Tokenizer;

/* Dies with EXIT_DATA, naming the file and the line, when it is not a sound vocabulary. */
Tokenizer *tokenizer_open(const char *path);
void tokenizer_close(Tokenizer *t);

int tokenizer_size(const Tokenizer *t);          // ids are 0 .. size - 1
int tokenizer_end_of_text(const Tokenizer *t);   // the id between documents

/* The bytes of a token, none for a special one; not NUL-terminated, and perhaps not whole UTF-8
   characters. Valid until tokenizer_close. */
const uint8_t *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *num_bytes);

/* Returns the number of ids; *ids is an array of that length, which the caller frees. Dies with
   EXIT_DATA when a byte of the text has no token. */
int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t num_bytes, int32_t **ids);

#ifdef __cplusplus
}
#endif
#endif
