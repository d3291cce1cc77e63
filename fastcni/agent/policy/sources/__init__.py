"""Where pods, namespaces and policies come from: documents, read into a Compiler.

    contract    what the loop of policies asks of a source
    files       a directory of JSON and YAML files
    kubernetes  the Kubernetes API
    content     what the documents of a source say, put into the Compiler
    documents   one document, and what closes its pods if it cannot be read
    unreadable  what stands in for such a document
    parse       the documents in a file, within limits
    reader      the processes that read files
    kept        what a source has said last, in a file
    events      Events of objects that cannot be read
"""
