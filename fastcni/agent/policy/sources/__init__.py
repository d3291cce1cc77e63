"""The sources of pods, namespaces and policies: documents, read into a Compiler.

    contract    what the loop of policies asks of a source
    files       a directory of JSON and YAML files
    kubernetes  the Kubernetes API
    content     puts the documents of a source into the Compiler
    documents   one document, and what closes its pods if it cannot be read
    unreadable  the records that stand in for an unreadable document
    parse       the documents in a file, within limits
    reader      the processes that read files
    kept        the last documents of a source, in a file
    events      Events of objects that cannot be read
"""
